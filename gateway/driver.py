"""Asyncio around the admission core: events in with the time they happened at, commands out to whoever waits."""

import asyncio
import itertools
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

PROGRESS_INTERVAL = 0.025
"""Seconds between two batches of progress: often against a decode step, seldom against an event."""

_ids = itertools.count(1)


def new_request() -> RequestId:
    """An id that no request had before."""
    return RequestId(next(_ids))


class RejectedError(Exception):
    """The core refused the request. `command` says how it ended and when to come back."""

    def __init__(self, command: Reject) -> None:
        super().__init__(command.outcome)
        self.command = command


class Driver:
    """Runs one controller: the only one to call it, always on the event loop's thread.

    Of what the relay counts, a batch of progress tells the core what changes its account: first tokens, and requests
    that have come to the edge of their blocks. Before that a count is only kept, for the end of its request.

    Args:
        controller: the core of one model.
        clock: monotonic seconds.
        progressed: told which requests moved, with each batch.
        record: told of each event, when it happened, and what the core answered.
    """

    def __init__(
        self,
        controller: AdmissionController,
        clock: Callable[[], float],
        progressed: Callable[[Collection[RequestId]], None],
        record: Callable[[Event, float, Sequence[Command]], None] | None = None,
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._progressed = progressed
        self._record = record
        self._waiting: dict[RequestId, asyncio.Future[Dispatch]] = {}
        self._moved: dict[RequestId, int] = {}
        """Tokens of those that moved since the last batch."""
        self._untold: dict[RequestId, int] = {}
        """Tokens, at the last batch, of those that had moved since the core heard of them."""
        self._news: dict[RequestId, float] = {}
        """Of those the core has heard of, how many tokens it wants to hear of next."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._wake_timer: asyncio.TimerHandle | None = None

    @property
    def controller(self) -> AdmissionController:
        """For what only looks at it: snapshots, explanations."""
        return self._controller

    def handle(self, event: Event) -> None:
        """Tell the core something and carry out what it asks for."""
        if type(event) is EndpointUp:  # its blocks may be others from now on: the next count of each is news
            if counts := {**self._untold, **self._moved}:
                self._tell(counts)
            self._news.clear()
        now = self._clock()
        commands = self._controller.handle(event, now)
        if self._record is not None:
            self._record(event, now, commands)
        for command in commands:
            self._carry_out(command)

    async def admit(self, arrival: Arrived) -> Dispatch:
        """Wait until the request may go to an endpoint.

        Cancelling gives up its place. After a return the caller owes the core one `finish` or `readmit`.

        Raises:
            RejectedError: it may not.
        """
        return await self._ask(arrival.request, arrival)

    async def readmit(self, request: RequestId, *, busy: bool) -> Dispatch:
        """Give a dispatched request back, unanswered, and wait for another dispatch.

        Raises:
            RejectedError: there is none. The request has ended.
        """
        self._forget(request)
        return await self._ask(request, Returned(request, busy))

    def progress(self, request: RequestId, generated: int) -> None:
        """Note how many tokens a request has generated; where that is news, the core hears of it in the next batch."""
        self._moved[request] = generated
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(PROGRESS_INTERVAL, self._flush)

    def finish(self, request: RequestId, verdict: Verdict, completion_tokens: int | None = None) -> None:
        """A dispatched request has left its endpoint."""
        generated, news = self._forget(request)
        if generated is not None and (generated >= news or not completion_tokens):
            self.handle(Progress(((request, generated),)))
        self.handle(Finished(request, verdict, completion_tokens))

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

    def _carry_out(self, command: Command) -> None:
        match command:
            case Dispatch():
                answer = self._waiting.pop(command.request, None)
                if answer is not None and not answer.done():
                    answer.set_result(command)
                else:  # the client left in this very turn of the loop: no engine sees the request
                    self.handle(Finished(command.request, Verdict.DONE, 0))
            case Reject():
                answer = self._waiting.pop(command.request, None)
                if answer is not None and not answer.done():
                    answer.set_exception(RejectedError(command))
            case WakeAt():
                if self._wake_timer is not None:
                    self._wake_timer.cancel()
                delay = max(0.0, command.at - self._clock())
                self._wake_timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _flush(self) -> None:
        self._flush_timer = None
        moved, self._moved = self._moved, {}
        if moved:
            self._report(moved)
            self._progressed(moved.keys())

    def _report(self, moved: dict[RequestId, int]) -> None:
        """Tell the core what is news of this. While it waits for a step of an engine, every token is.

        A batch without any is told, too: who waits is asked again with each, as predictions change with time.
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
        """The last count of a request that has left its endpoint, if any, and from which on it is news."""
        generated = self._untold.pop(request, None)
        return self._moved.pop(request, generated), self._news.pop(request, 0)

    def _wake(self) -> None:
        self._wake_timer = None
        self.handle(Tick())
