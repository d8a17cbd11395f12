"""The requests that are on an endpoint now: who moves, who is overdue, who must be taken off."""

import asyncio
from collections.abc import Callable, Collection
from enum import Enum, auto

from gateway.admission.events import EndpointId, RequestId
from gateway.config import UpstreamSettings
from gateway.endpoints.health import State
from gateway.pools import Endpoint

ABANDONED_AFTER = 10.0
"""Seconds of silence after which a stream on an endpoint that takes no traffic is given up: a vLLM that was told to
stop leaves its streams open and silent (measured, 0.32)."""
SWEEP_INTERVAL = 1.0
"""Seconds between two looks for overdue requests: one timer for all of them, none for each."""


class Interruption(Enum):
    """Why a flight's task was cancelled, when it was us who did it."""

    OVERDUE = auto()
    """Nothing came for longer than its time allows. It is not sent elsewhere: it may be what its endpoint chokes on."""
    EVACUATED = auto()
    """Its endpoint went down, hangs, sleeps or stops, and nothing of an answer had come."""


_KEEPS = frozenset({State.DRAINING, State.BLOCKED, State.SUSPECT})
"""States in which an endpoint takes no traffic, and may yet go on with what it has."""


class Flight:
    """One request on one endpoint."""

    __slots__ = (
        "answering",
        "delivering",
        "endpoint",
        "interruption",
        "moved_at",
        "request",
        "streams",
        "task",
        "watched",
    )

    def __init__(
        self, request: RequestId, endpoint: Endpoint, task: "asyncio.Task[object]", now: float, *, streams: bool
    ) -> None:
        self.request = request
        self.endpoint = endpoint
        self.task = task
        self.streams = streams
        self.moved_at = now
        self.answering = False
        """Whether a first event has come."""
        self.delivering = False
        """Whether what has come is being handed to the client: in between, nothing is read."""
        self.watched = True
        """Whether its progress tells how its endpoint is: not while it waits for its client."""
        self.interruption: Interruption | None = None

    def interrupt(self, why: Interruption) -> None:
        """Cancel the request's task, which finds the reason here."""
        if self.interruption is None:
            self.interruption = why
            self.task.cancel()


class Flights:
    """Every flight, watched by one timer.

    Args:
        clock: monotonic seconds.
        timeouts: the settings in force.
    """

    def __init__(self, clock: Callable[[], float], timeouts: Callable[[], UpstreamSettings]) -> None:
        self._clock = clock
        self._timeouts = timeouts
        self._flights: dict[RequestId, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def open(
        self, request: RequestId, endpoint: Endpoint, prompt_tokens: int, *, streams: bool, brought: bool = False
    ) -> Flight:
        """The current task sends a request to an endpoint.

        `streams` says that its tokens will be seen one by one, `brought` that it was taken off another endpoint.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # we are in a coroutine
        flight = self._flights[request] = Flight(request, endpoint, task, self._clock(), streams=streams)
        endpoint.monitor.dispatched(request, prompt_tokens, streams=streams, brought=brought)
        return flight

    def close(self, flight: Flight) -> None:
        """The request has left its endpoint."""
        if self._flights.get(flight.request) is flight:
            del self._flights[flight.request]
        flight.endpoint.monitor.finished(flight.request)

    def answers(self, flight: Flight) -> None:
        """The first of an answer has come, or all of it."""
        flight.answering = True
        self.progressed((flight.request,))

    def progressed(self, requests: Collection[RequestId]) -> None:
        """These requests had tokens since the last batch."""
        now = self._clock()
        moved: dict[EndpointId, list[Flight]] = {}
        for request in requests:
            flight = self._flights.get(request)
            if flight is not None:
                flight.moved_at = now
                moved.setdefault(flight.endpoint.id, []).append(flight)
        for flights in moved.values():
            flights[0].endpoint.monitor.progressed([flight.request for flight in flights])

    def evacuate(self, endpoint: EndpointId) -> None:
        """Take off an endpoint that went down or hangs what has not been answered yet: it may go elsewhere.

        The one that found out, where it was one of them, knows.
        """
        finder = asyncio.current_task()
        for flight in list(self._flights.values()):
            if flight.endpoint.id == endpoint and not flight.answering and flight.task is not finder:
                flight.interrupt(Interruption.EVACUATED)

    def expire(self, requests: Collection[RequestId]) -> None:
        """End requests that were silent for longer than their endpoint's work explains."""
        for request in requests:
            flight = self._flights.get(request)
            if flight is not None and not flight.delivering:
                flight.interrupt(Interruption.OVERDUE)

    def sweep(self) -> None:
        """Interrupt what is overdue, and hold no endpoint to account for a client that does not read."""
        now = self._clock()
        for flight in list(self._flights.values()):
            silence = now - flight.moved_at
            if silence > self._limit(flight):
                flight.interrupt(Interruption.OVERDUE)
            elif silence > ABANDONED_AFTER and _abandoned(flight):
                flight.interrupt(Interruption.OVERDUE if flight.answering else Interruption.EVACUATED)
            elif flight.watched and flight.delivering and silence > SWEEP_INTERVAL:
                flight.watched = False
                flight.endpoint.monitor.finished(flight.request)
            elif not flight.watched and not flight.delivering:
                flight.watched = True
                flight.endpoint.monitor.dispatched(flight.request, 0, streams=flight.streams)

    def _limit(self, flight: Flight) -> float:
        """The longest silence it is allowed, seconds."""
        timeouts = self._timeouts()
        return timeouts.idle_timeout if flight.answering and flight.streams else timeouts.first_byte_timeout

    async def watch(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            self.sweep()


def _abandoned(flight: Flight) -> bool:
    """Whether nothing more is to be expected of its endpoint."""
    endpoint = flight.endpoint
    return not endpoint.healthy and not flight.delivering and endpoint.monitor.status.state not in _KEEPS
