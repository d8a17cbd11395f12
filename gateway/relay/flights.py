"""The requests in flight: notes their progress, interrupts the overdue, takes them off endpoints that went down.

Its timeouts are the settings'. `endpoints/silence.py` judges by the engine's load, and may end a request before them.
"""

import asyncio
from collections.abc import Callable, Collection
from enum import Enum, auto

from gateway.admission.events import EndpointId, RequestId
from gateway.config.settings import UpstreamSettings
from gateway.pools.directory import Endpoint

ABANDONED_AFTER = 10.0
"""Seconds of silence after which a stream on an endpoint without traffic is given up: a vLLM that was told to stop
leaves its streams open and silent (measured, 0.32)."""
_SERVER_ERROR = 500
SWEEP_INTERVAL = 1.0
"""Seconds between two searches for overdue requests: one timer serves them all."""


class Interruption(Enum):
    """The cause for which the gateway cancelled a flight's task."""

    OVERDUE = auto()
    """It was silent for longer than its timeout. It is not retried: it may be what its endpoint chokes on."""
    EVACUATED = auto()
    """Its endpoint went down, hangs, sleeps or stops before an answer began."""
    SHUTDOWN = auto()
    """This gateway ends before its answer does."""


class Flight:
    """One request on one endpoint."""

    __slots__ = (
        "answering",
        "behind",
        "delivering",
        "endpoint",
        "engine_done",
        "interruption",
        "moved_at",
        "request",
        "sent",
        "streams",
        "task",
        "watched",
    )

    def __init__(
        self,
        request: RequestId,
        endpoint: Endpoint,
        task: "asyncio.Task[object]",
        now: float,
        *,
        streams: bool,
        behind: Callable[[], None] | None,
    ) -> None:
        self.request = request
        self.endpoint = endpoint
        self.task = task
        self.streams = streams
        self.behind = behind
        self.moved_at = now
        self.sent = False
        """Whether its endpoint may have seen any of it."""
        self.answering = False
        """Whether a first event has come."""
        self.engine_done = False
        """Whether the engine has finished with it, or has nothing to do with it: only its server has yet to answer."""
        self.delivering = False
        """Whether a piece is being handed to the client; meanwhile nothing is read."""
        self.watched = True
        """Whether its silence and its tokens say something of its endpoint. Not while it waits for its client, as the
        tokens may have come long ago, nor once the engine is done."""
        self.interruption: Interruption | None = None

    def sending(self) -> None:
        """Note that it goes out: its connection is there."""
        self.sent = True

    def answered(self, status: int) -> None:
        """Note an answer's head. It shows that the engine was not silent, unless a proxy may have sent it: over 500."""
        self.delivering = status <= _SERVER_ERROR

    def interrupt(self, interruption: Interruption) -> None:
        """Cancel the request's task, which reads the cause from here."""
        if self.interruption is None:
            self.interruption = interruption
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
        self,
        request: RequestId,
        endpoint: Endpoint,
        prompt_tokens: int | None,
        *,
        streams: bool,
        evacuated: bool = False,
        behind: Callable[[], None] | None = None,
    ) -> Flight:
        """Note that the current task sends a request to an endpoint.

        `prompt_tokens`: what the engine computes; None if only its server answers. `streams`: its tokens arrive one by
        one. `evacuated`: it was taken off another endpoint. `behind`: called when its client is.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # we are in a coroutine
        now = self._clock()
        flight = self._flights[request] = Flight(request, endpoint, task, now, streams=streams, behind=behind)
        if prompt_tokens is None:
            flight.engine_done, flight.watched = True, False
        else:
            endpoint.watch.dispatched(request, prompt_tokens, streams=streams, evacuated=evacuated)
        return flight

    def close(self, flight: Flight) -> None:
        """Note that the request has left its endpoint."""
        del self._flights[flight.request]
        flight.endpoint.watch.finished(flight.request, delivering=flight.delivering)

    def note_answer(self, flight: Flight, *, engine_done: bool = False) -> None:
        """Note the first piece of an answer; `engine_done`: the engine only sends the rest."""
        flight.answering = True
        flight.moved_at = self._clock()
        flight.endpoint.watch.progressed((flight.request,))
        if engine_done:
            flight.engine_done, flight.watched = True, False
            flight.endpoint.watch.finished(flight.request)

    def progressed(self, requests: Collection[RequestId]) -> None:
        """Note the requests that had tokens since the last batch."""
        now = self._clock()
        moved: dict[EndpointId, list[Flight]] = {}
        for request in requests:
            flight = self._flights.get(request)
            if flight is not None:
                flight.moved_at = now
                if flight.watched:
                    moved.setdefault(flight.endpoint.id, []).append(flight)
        for flights in moved.values():
            flights[0].endpoint.watch.progressed([flight.request for flight in flights])

    def evacuate(self, endpoint: EndpointId) -> None:
        """Take the unanswered requests off an endpoint that went down or hangs: they may go elsewhere.

        The request that found the failure, if it was one of them, handles it itself.
        """
        finder = asyncio.current_task()
        for flight in list(self._flights.values()):
            answered = flight.answering or flight.delivering  # a refusal is only delivered
            if flight.endpoint.id == endpoint and not answered and flight.task is not finder:
                flight.interrupt(Interruption.EVACUATED)

    def expire(self, requests: Collection[RequestId]) -> None:
        """Interrupt requests that were silent for longer than their endpoint's load explains."""
        for request in requests:
            flight = self._flights.get(request)
            if flight is not None and not flight.delivering:
                flight.interrupt(Interruption.OVERDUE)

    def cut(self) -> None:
        """Interrupt all of them: this gateway ends."""
        for flight in list(self._flights.values()):
            flight.interrupt(Interruption.SHUTDOWN)

    def sweep(self) -> None:
        """Interrupt what is overdue. A client that does not read is not counted against its endpoint."""
        now = self._clock()
        for flight in list(self._flights.values()):
            silence = now - flight.moved_at
            if silence > self._limit(flight):
                flight.interrupt(Interruption.OVERDUE)
            elif silence > ABANDONED_AFTER and _abandoned(flight):
                flight.interrupt(Interruption.OVERDUE if flight.answering else Interruption.EVACUATED)
            elif flight.watched and flight.delivering and silence > SWEEP_INTERVAL:
                flight.watched = False
                flight.endpoint.watch.finished(flight.request, delivering=True)
                if flight.behind is not None:
                    flight.behind()
                    flight.behind = None
            elif not (flight.watched or flight.delivering or flight.engine_done):
                flight.watched = True
                flight.endpoint.watch.dispatched(flight.request, 0, streams=flight.streams, started=flight.answering)

    def _limit(self, flight: Flight) -> float:
        """Its longest allowed silence, in seconds."""
        timeouts = self._timeouts()
        return timeouts.idle_timeout if flight.answering and flight.streams else timeouts.first_byte_timeout

    async def watch(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            self.sweep()


def _abandoned(flight: Flight) -> bool:
    """Whether its endpoint is not expected to send any more."""
    return not (flight.endpoint.healthy or flight.delivering or flight.endpoint.watch.keeps)
