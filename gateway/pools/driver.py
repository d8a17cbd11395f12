"""The asyncio driver of an admission core: passes events in with their time, carries commands to waiting requests."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Cancelled,
    EndpointUp,
    Event,
    Finished,
    Progress,
    RequestId,
    Returned,
    Tick,
    Verdict,
)
from gateway.admission.explanation import Explanation
from gateway.pools.interface import RejectedError

PROGRESS_INTERVAL = 0.025
"""Seconds between two batches of progress: short against most decode steps, long against the cost of an event."""

Progressed = Callable[[Collection[RequestId]], None]
"""Called with the requests that moved since the last batch."""


class Driver:
    """Runs one controller and is its only caller, always on the event loop's thread.

    It is the `Admission` of requests in this process.

    The relay counts every token. A batch of progress tells the core only what changes its account: first tokens, and
    requests that reached the edge of their blocks. All other counts are kept here until the request ends.

    Args:
        controller: the core of one model.
        clock: monotonic seconds.
        progressed: called with each batch, with the requests that moved.
        record: called with each event, its time and the core's commands.
    """

    def __init__(
        self,
        controller: AdmissionController,
        clock: Callable[[], float],
        progressed: Progressed,
        record: Callable[[Event, float, Sequence[Command]], None] | None = None,
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._progressed = progressed
        self._record = record
        self._waiting: dict[RequestId, asyncio.Future[Dispatch]] = {}
        self._moved: dict[RequestId, int] = {}
        """Token counts of requests that moved since the last batch."""
        self._untold: dict[RequestId, int] = {}
        """Token counts at the last batch that the core was not told."""
        self._news: dict[RequestId, float] = {}
        """By request the core has heard of: the token count at which it wants to hear again."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._wake_timer: asyncio.TimerHandle | None = None

    @property
    def controller(self) -> AdmissionController:
        """The controller, for readers only: snapshots, explanations."""
        return self._controller

    def handle(self, event: Event) -> None:
        """Pass an event to the core and carry out its commands."""
        if type(event) is EndpointUp:  # its block size may have changed: each next count is told
            if counts := {**self._untold, **self._moved}:
                self._tell(counts)
            self._news.clear()
        # A loop, not recursion: when a proxy ends, its clients leave by the thousand.
        events = deque([event])
        while events:
            event = events.popleft()
            now = self._clock()
            commands = self._controller.handle(event, now)
            if self._record is not None:
                self._record(event, now, commands)
            events.extend(filter(None, map(self._carry_out, commands)))

    async def admit(self, arrival: Arrived) -> Dispatch:
        """See `Admission.admit`."""
        return await self._ask(arrival.request, arrival)

    async def readmit(self, request: RequestId, *, busy: bool) -> Dispatch:
        """See `Admission.readmit`."""
        self._forget(request)
        return await self._ask(request, Returned(request, busy))

    def progress(self, request: RequestId, generated: int) -> None:
        """See `Admission.progress`."""
        self._moved[request] = generated
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(PROGRESS_INTERVAL, self._flush)

    def finish(self, request: RequestId, verdict: Verdict, completion_tokens: int | None = None) -> None:
        """See `Admission.finish`."""
        generated, news = self._forget(request)
        if generated is not None and (generated >= news or not completion_tokens):
            self.handle(Progress(((request, generated),)))
        self.handle(Finished(request, verdict, completion_tokens))

    async def explain(self, arrival: Arrived) -> Explanation:
        """See `Admission.explain`."""
        self.handle(Tick())  # an arriving request would find the accounts up to date, too
        return self._controller.explain(arrival, self._clock())

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._flush_timer, self._wake_timer):
            if timer is not None:
                timer.cancel()

    async def _ask(self, request: RequestId, event: Arrived | Returned) -> Dispatch:
        answer: asyncio.Future[Dispatch] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        self.handle(event)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # Dispatched, but the client left before this line ran: no engine sees the request.
                self.handle(Finished(request, Verdict.DONE, 0))
            else:
                self._waiting.pop(request, None)
                self.handle(Cancelled(request))
            raise

    def _carry_out(self, command: Command) -> Event | None:
        """Carry out a command; return the event that follows from it, if any."""
        match command:
            case Dispatch():
                answer = self._waiting.pop(command.request, None)
                if answer is not None and not answer.done():
                    answer.set_result(command)
                else:  # the client left in this turn of the loop: no engine sees the request
                    return Finished(command.request, Verdict.DONE, 0)
            case Reject():
                answer = self._waiting.pop(command.request, None)
                if answer is not None and not answer.done():
                    answer.set_exception(RejectedError(command))
            case WakeAt():
                if self._wake_timer is not None:
                    self._wake_timer.cancel()
                delay = max(0.0, command.at - self._clock())
                self._wake_timer = asyncio.get_running_loop().call_later(delay, self._wake)
        return None

    def _flush(self) -> None:
        self._flush_timer = None
        moved, self._moved = self._moved, {}
        if moved:
            self._report(moved)
            self._progressed(moved.keys())

    def _report(self, moved: dict[RequestId, int]) -> None:
        """Tell the core the counts that change its account. While it waits for an engine's step, every token does.

        A batch without such counts is told too: predictions change with time, so waiting requests are tried again.
        """
        if self._controller.aborting:
            self._tell(moved)
            return
        news, untold = self._news, self._untold
        told: dict[RequestId, int] = {}
        for request, generated in moved.items():
            if generated >= news.get(request, 0):
                told[request] = generated
            else:
                untold[request] = generated
        self._tell(told)

    def _tell(self, counts: dict[RequestId, int]) -> None:
        self.handle(Progress(tuple(counts.items())))
        self._news.update(self._controller.news(counts))

    def _forget(self, request: RequestId) -> tuple[int | None, float]:
        """Drop a request that left its endpoint; return its last count, if any, and the next count the core wanted."""
        generated = self._untold.pop(request, None)
        return self._moved.pop(request, generated), self._news.pop(request, 0)

    def _wake(self) -> None:
        self._wake_timer = None
        self.handle(Tick())
