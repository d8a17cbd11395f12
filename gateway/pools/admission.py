"""The admission of a front's requests to the endpoints of one model."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Arrived, Back, Behind, Cancelled, Finished, Progress, RequestId, Returned, Verdict
from gateway.admission.explanation import Explanation
from gateway.admission.snapshot import Turn
from gateway.pools.counts import Counts
from gateway.pools.interface import Decider
from gateway.runtime.turnstile import Turnstile

PROGRESS_INTERVAL = 0.025
"""Least seconds between two batches of progress: short against most decode steps, long against the cost of an event."""
LONGEST_INTERVAL = 0.25
"""Most seconds between two. Time alone lets nobody go more often, as forecasts are as old (`TUNING.forecast_age`)."""
FULL_BATCH = 8
"""Counts that a batch waits for between the two: one of few costs as much, and as many blocks are nothing to a cache.
A first token never waits."""

Progressed = Callable[[Collection[RequestId]], None]
"""Called with the requests that moved since the last batch."""


class RejectedError(Exception):
    """The core refused the request: `command` says why and when to retry. The relay raises `RefusedError` for it."""

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
        self._turnstile = Turnstile()
        """What waited passes it: an endpoint that comes up, or a time that ends, decides about hundreds at once."""
        self._interval = PROGRESS_INTERVAL
        self._timer: asyncio.Handle | None = None
        """Of the next batch. It runs while the core was told of a request that has not ended."""
        self._due = 0.0
        """When it fires."""

    async def admit(self, arrival: Arrived) -> Dispatch:
        """Wait until the request may go to an endpoint.

        Cancelling gives up its position in the queue. After a return the caller owes one `finish` or `readmit`.

        Raises:
            RejectedError: it was refused.
        """
        return await self._ask(arrival.request, arrival)

    async def readmit(self, request: RequestId, cause: Back) -> Dispatch:
        """Give a dispatched request back, unanswered, and wait for another dispatch.

        Raises:
            RejectedError: it gets none. The request has ended.
        """
        self.counts.forget(request)
        return await self._ask(request, Returned(request, cause))

    def first_tokens(self, request: RequestId, generated: int) -> None:
        """Note a request's first tokens: the core hears of them soon."""
        self._hurry(PROGRESS_INTERVAL)
        self.counts.moved[request] = generated

    def progress(self, request: RequestId, generated: int) -> None:
        """Note a request's generated tokens. The next batch tells the core if that changes its account."""
        self.counts.moved[request] = generated

    def behind(self, request: RequestId) -> None:
        """Report that the client of a dispatched request is behind."""
        self.decider.handle(Behind(request))

    def finish(
        self,
        request: RequestId,
        verdict: Verdict,
        completion_tokens: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """Report that a dispatched request has left its endpoint; see `Finished`."""
        generated, next_report = self.counts.forget(request)
        if generated is not None and not (next_report and completion_tokens):
            self.decider.handle(Progress(((request, generated),)))
        self.decider.handle(Finished(request, verdict, completion_tokens, prompt_tokens))

    async def explain(self, arrival: Arrived) -> Explanation:
        """Decision about a request if it arrived now, and its reasons. Changes nothing.

        Raises:
            RejectedError: its model is not served any more.
        """
        return await self.decider.explained(arrival)

    async def turn(self, request: RequestId) -> Turn | None:
        """See `Decider.turn`."""
        return await self.decider.turn(request)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

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

    def want(self, next_reports: Mapping[RequestId, float], *, everything: bool) -> None:
        """Note the counts at which the core wants to hear of requests again."""
        if everything and not self.counts.everything:
            self._hurry(0.0)  # or counts from before an abort would come so late that they seem to be from after it
        self.counts.want(next_reports, everything=everything)

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
            if not answer.done():
                await asyncio.wait((answer,))
                await self._turnstile.pass_through()
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # Dispatched, but the client left before this line ran: no engine sees the request.
                self.decider.handle(Finished(request, Verdict.UNSERVED, 0))
            else:
                self._waiting.pop(request, None)
                self.decider.handle(Cancelled(request))
            raise

    def _fire(self) -> None:
        self._timer = None
        self._flush()

    def _flush(self) -> None:
        """Tell the core what changes its account.

        A batch without such counts is told too: predictions change with time, so the driver may try waiting requests
        again.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        moved, told = self.counts.batch()
        interval = PROGRESS_INTERVAL if self.counts.everything else self._interval * FULL_BATCH / (len(told) or 1)
        self._interval = min(max(interval, PROGRESS_INTERVAL), LONGEST_INTERVAL)
        if moved:
            self.decider.handle(Progress(tuple(told.items())))
            self._progressed(moved)
        if self.counts.next_reports and self._timer is None:
            self._set_timer(self._interval)

    def _hurry(self, seconds: float) -> None:
        """Let the next batch go within this time."""
        if self._timer is not None:
            if self._due <= asyncio.get_running_loop().time() + seconds:
                return
            self._timer.cancel()
        self._set_timer(seconds)

    def _set_timer(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds  # uvloop's handles of what is due at once do not tell it
        self._timer = loop.call_later(seconds, self._fire)
