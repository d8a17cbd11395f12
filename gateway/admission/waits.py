"""How long requests will wait, how long they may, and when a refused one should come back."""

from math import inf

from gateway.admission.drain_rate import DrainRate
from gateway.admission.lifecycle import State
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.policy import Policy
from gateway.admission.promises import Pressure, Promises
from gateway.admission.queue import Queue
from gateway.admission.request import Request
from gateway.admission.roster import Roster
from gateway.admission.shedding import CAP, FLOOR, RetryAfter, patience

SURE = 2.0
"""How far beyond its patience the predicted wait of a request must be for it to be refused on arrival. Predictions err,
and who is let in and then runs out of time has cost nobody anything but its own wait."""


class Waits:
    """Predicted and allowed waits of one pool, seconds."""

    def __init__(self, policy: Policy, roster: Roster, queue: Queue) -> None:
        self._policy = policy
        self._roster = roster
        self._queue = queue
        self.drained = DrainRate()
        self.promises = Promises(policy.weights)
        self._retry_after = RetryAfter()

    def govern(self, policy: Policy) -> None:
        """Go by another policy from now on."""
        self._policy = policy

    def target(self, request: Request) -> float | None:
        """To its first token: what its client asks for, else its band's target, else everybody's."""
        arrival, policy = request.arrival, self._policy
        if arrival.ttft_target is not None:
            return arrival.ttft_target
        band = policy.bands.get(arrival.band)
        return policy.ttft_target if band is None or band.ttft_target is None else band.ttft_target

    def prefill(self, request: Request) -> float:
        """From its dispatch to its first token, where that is soonest; 0 while nothing is known."""
        soonest = inf
        for endpoint in self._roster.eligible(request):
            soonest = min(soonest, endpoint.prefill_seconds(request))
        return soonest if soonest < inf else 0.0

    def patience(self, request: Request) -> float:
        """The longest it may wait while an endpoint is live."""
        target = self.target(request)
        prefill = 0.0 if target is None else self.prefill(request)
        return patience(target, prefill, self._policy.ttl)

    def deadline(self, request: Request) -> float:
        """The time until which it may wait."""
        policy, roster = self._policy, self._roster
        longest = request.patience if roster.live else policy.no_endpoint_ttl
        return min(
            max(request.arrived_at, roster.since) + longest,
            request.arrived_at + policy.ttl + policy.no_endpoint_ttl,
        )

    def overdue(self, request: Request) -> Outcome:
        """How a request ends whose deadline has passed."""
        if not self._roster.live:
            return Outcome.NO_ENDPOINT
        return Outcome.QUEUE_TIMEOUT if request.patience >= self._policy.ttl else Outcome.WAIT_TOO_LONG

    def predicted(self, request: Request, now: float, *, peek: bool = False) -> float | None:
        """Until its dispatch, of a request that waits or would; None while no rate is known.

        The service that goes before it, and the tokens that must become free for itself, over the rate at which the
        pool takes service. `peek` leaves no trace.
        """
        rate = self.rate(now)
        if not rate:
            return None
        arrival = request.arrival
        own = request.cost if request.state is State.WAITING else 0.0
        ahead = self._queue.ahead(arrival.band, arrival.flow, request.lane, own)
        service = ahead.service(request.cost) if ahead.urgent or ahead.same else 0.0
        short = inf
        for endpoint in self._roster.eligible(request):
            short = min(short, endpoint.deficit(request, now, peek=peek))
        return (service + (short if short < inf else 0.0)) / rate

    def full(self, requests: int = 0, size: int = 0) -> bool:
        """Whether more wait than may, with so many requests and bytes added."""
        queue, policy = self._queue, self._policy
        return queue.depth + requests > policy.max_requests or queue.bytes + size > policy.max_bytes

    def in_vain(self, request: Request, now: float, *, peek: bool = False) -> bool:
        """Whether it would surely wait longer than it may.

        Not one that may pass who is first: it does not wait for its turn, but for room that is too little for that one.
        """
        if not self._roster.live or self.target(request) is None or self._queue.may_pass(request):
            return False
        wait = self.predicted(request, now, peek=peek)
        return wait is not None and wait > request.patience * SURE

    def told(self, request: Request, outcome: Outcome, now: float) -> float:
        """Seconds after which one that is refused so should come back; its turn is kept until then, where it can be."""
        promise = request.promise
        if promise is not None and not promise.used:  # it came too early: the same again
            return _within(promise.due - now)
        pressure = self._pressure(request, outcome, now, peek=False)
        if pressure is None:
            return self._retry_after.after(self.comes_back_in(request, outcome, now))
        due = self.promises.grant(request, outcome, pressure, now)
        return CAP if due is None else _within(due - now)

    def would_tell(self, request: Request, outcome: Outcome, now: float) -> float | None:
        """The same, unjittered, of one that is only asked about; None where nobody can tell. Leaves no trace."""
        promise = request.promise
        if promise is not None and promise.due > now:
            return _within(promise.due - now)
        pressure = self._pressure(request, outcome, now, peek=True)
        if pressure is None:
            return self.comes_back_in(request, outcome, now, peek=True)
        due = self.promises.moment(request, pressure, now)
        return CAP if due is None else _within(due - now)

    def _pressure(self, request: Request, outcome: Outcome, now: float, *, peek: bool) -> Pressure | None:
        """What a turn that is kept for it has to reckon with; None where none is kept.

        No more of those who wait go first than its own patience has room for: the others are refused, too.
        """
        rate = self.rate(now) if outcome in FOR_WANT_OF_ROOM and request.arrival.key else None
        if not rate:
            return None
        wait = self.predicted(request, now, peek=peek) or 0.0
        return Pressure(min(wait, request.patience), rate, self._queue.weight(request.arrival.band))

    def comes_back_in(self, request: Request, outcome: Outcome, now: float, *, peek: bool = False) -> float | None:
        """Until it would have its turn, or its first token in time; None where nobody can tell."""
        if outcome in {Outcome.DRAINING, Outcome.NO_ENDPOINT}:
            return None
        wait = self.predicted(request, now, peek=peek)
        return wait - request.patience if wait is not None and outcome is Outcome.WAIT_TOO_LONG else wait

    def rate(self, now: float) -> float | None:
        """Tokens of service per second: measured under pressure, or else what those in flight take; None if unknown."""
        measured = self.drained.rate(now)
        if measured is not None:
            return measured
        rates = [rate for e in self._roster.live if (rate := e.service_rate) is not None]
        return sum(rates) if rates else None


def _within(seconds: float) -> float:
    return min(max(seconds, FLOOR), CAP)
