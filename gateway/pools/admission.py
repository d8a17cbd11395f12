"""The admission of a front's requests to the endpoints of one model."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Arrived, Back, Cancelled, Finished, Progress, RequestId, Returned, Verdict
from gateway.admission.explanation import Explanation
from gateway.pools.counts import Counts
from gateway.pools.interface import Decider

PROGRESS_INTERVAL = 0.025
"""Seconds between two batches of progress: short against most decode steps, long against the cost of an event."""

Progressed = Callable[[Collection[RequestId]], None]
"""Called with the requests that moved since the last batch."""


class RejectedError(Exception):
    """The core refused the request. `command` has the outcome and when to retry."""

    def __init__(self, command: Reject) -> None:
        super().__init__(command.outcome)
        self.command = command


class Admission:
    """Asks the model's core for each request, waits for its answer, and reports progress in batches.

    It is the `Asker` of a driver in this process.

    Args:
        progressed: called with each batch.
    """

    def __init__(self, progressed: Progressed) -> None:
        self.decider: Decider
        """The core of the model, in this process or another; set before the first request."""
        self.counts = Counts()
        self._progressed = progressed
        self._waiting: dict[RequestId, asyncio.Future[Dispatch]] = {}
        self._flush_timer: asyncio.TimerHandle | None = None

    async def admit(self, arrival: Arrived) -> Dispatch:
        """Wait until the request may go to an endpoint.

        Cancelling gives up its place in the queue. After a return the caller owes one `finish` or `readmit`.

        Raises:
            RejectedError: it was refused.
        """
        return await self._ask(arrival.request, arrival)

    async def readmit(self, request: RequestId, why: Back) -> Dispatch:
        """Give a dispatched request back, unanswered, and wait for another dispatch.

        Raises:
            RejectedError: it gets none. The request has ended.
        """
        self.counts.forget(request)
        return await self._ask(request, Returned(request, why))

    def progress(self, request: RequestId, generated: int) -> None:
        """Note a request's generated tokens. The next batch tells the core if that changes its account."""
        self.counts.moved[request] = generated
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(PROGRESS_INTERVAL, self._flush)

    def finish(self, request: RequestId, verdict: Verdict, completion_tokens: int | None = None) -> None:
        """Report that a dispatched request has left its endpoint."""
        generated, news = self.counts.forget(request)
        if generated is not None and (generated >= news or not completion_tokens):
            self.decider.handle(Progress(((request, generated),)))
        self.decider.handle(Finished(request, verdict, completion_tokens))

    async def explain(self, arrival: Arrived) -> Explanation:
        """Decision about a request if it arrived now, and its reasons. Changes nothing.

        Raises:
            RejectedError: its model is not served any more.
        """
        return await self.decider.explained(arrival)

    def close(self) -> None:
        """Stop the timer."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()

    # The answers of the core.

    def decided(self, command: Dispatch | Reject) -> bool:
        """Pass on a decision; False if nobody waits for it any more."""
        answer = self._waiting.pop(command.request, None)
        if answer is None or answer.done():
            return False
        if isinstance(command, Dispatch):
            answer.set_result(command)
        else:
            answer.set_exception(RejectedError(command))
        return True

    def want(self, news: Mapping[RequestId, float], *, everything: bool) -> None:
        """Note the counts at which the core wants to hear of requests again."""
        self.counts.want(news, everything=everything)

    def renew(self) -> None:
        """Tell every count: an endpoint came up, and its block size may have changed."""
        if counts := self.counts.unheard():
            self.decider.handle(Progress(tuple(counts.items())))
        self.counts.renew()

    async def _ask(self, request: RequestId, event: Arrived | Returned) -> Dispatch:
        answer: asyncio.Future[Dispatch] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        self.decider.handle(event)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # Dispatched, but the client left before this line ran: no engine sees the request.
                self.decider.handle(Finished(request, Verdict.DONE, 0))
            else:
                self._waiting.pop(request, None)
                self.decider.handle(Cancelled(request))
            raise

    def _flush(self) -> None:
        """Tell the core what changes its account.

        A batch without such counts is told too: predictions change with time, so the driver may try waiting requests
        again.
        """
        self._flush_timer = None
        moved, told = self.counts.batch()
        if moved:
            self.decider.handle(Progress(tuple(told.items())))
            self._progressed(moved)
