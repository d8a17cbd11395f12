"""A request's place in flight, which the owner of the decisions gives it."""

from gateway.admission.commands import Dispatch
from gateway.admission.events import Arrived, Back, Demand, RequestId, Verdict
from gateway.admission.snapshot import Turn
from gateway.pools.admission import Admission


class Place:
    """The request's place in flight, given back exactly once whatever happens.

    Whatever an engine says, the owner is told of no more tokens than the request may generate: one wrong count would
    keep its flow waiting for days, or shut its tenant out for years.
    """

    def __init__(self, admission: Admission, request: RequestId, demand: Demand) -> None:
        self.request = request
        self._admission = admission
        self._counts = admission.counts
        self._most = demand.sequences * max(1, demand.max_tokens)
        self._held = False
        self._unread = False

    async def take(self, arrival: Arrived) -> Dispatch:
        """Wait for the place."""
        dispatch = await self._admission.admit(arrival)
        self._held = True
        return dispatch

    async def again(self, cause: Back) -> Dispatch:
        """Give the place back, the request unanswered, and wait for another one."""
        self._held = False
        dispatch = await self._admission.readmit(self.request, cause)
        self._held = True
        return dispatch

    async def turn(self) -> Turn | None:
        """The turn of the request, while it waits; see `Decider.turn`."""
        return await self._admission.turn(self.request)

    def first_tokens(self, generated: int) -> None:
        """Note the first tokens."""
        self._admission.first_tokens(self.request, min(generated, self._most))

    def progress(self, generated: int) -> None:
        """Note the tokens generated so far. Called for every event: the core hears of them in batches."""
        most = self._most
        self._counts.moved[self.request] = generated if generated < most else most  # noqa: FURB136  # `min` is dearer

    def unread(self) -> None:
        """Note that a whole answer passes whose tokens are known at its end at best. Without them it pays all."""
        self._unread = True

    def behind(self) -> None:
        """Note that the client is behind: what the engine has finished since is not seen here."""
        if self._held:
            self._admission.behind(self.request)

    def release(self, verdict: Verdict, completion_tokens: int | None = None, prompt_tokens: int | None = None) -> None:
        """Give the place back for good, see `Finished`; does nothing when none is held."""
        if self._held:
            self._held = False
            if completion_tokens is None and self._unread:
                completion_tokens = self._most
            tokens = None if completion_tokens is None else min(completion_tokens, self._most)
            self._admission.finish(self.request, verdict, tokens, prompt_tokens)
