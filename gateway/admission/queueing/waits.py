"""The predicted and the allowed waits of requests, and when a refused one should come back."""

from math import inf

from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.lifecycle import State
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.rules import deficit
from gateway.admission.policy import Policy
from gateway.admission.queueing.band import Most
from gateway.admission.queueing.drain_rate import DrainRate
from gateway.admission.queueing.jitter import CAP, FLOOR, Jitter
from gateway.admission.queueing.promises import Pressure, Promises
from gateway.admission.queueing.queue import Queue
from gateway.admission.tuning import TUNING


class Waits:
    """Predicted and allowed waits of requests in one pool, seconds."""

    def __init__(self, policy: Policy, endpoints: Endpoints, queue: Queue) -> None:
        self._policy = policy
        self._endpoints = endpoints
        self._queue = queue
        self.drain_rate = DrainRate()
        self.promises = Promises(policy.weights)
        self._jitter = Jitter()

    def govern(self, policy: Policy) -> None:
        """Apply another policy."""
        self._policy = policy
        self.promises.govern(policy.weights)

    def target(self, request: RequestRecord) -> float | None:
        """TTFT target of a request: its client's, else its band's, else the policy's."""
        arrival, policy = request.arrival, self._policy
        if arrival.ttft_target is not None:
            return arrival.ttft_target
        band = policy.bands.get(arrival.band)
        return policy.ttft_target if band is None or band.ttft_target is None else band.ttft_target

    def prefill(self, request: RequestRecord) -> float:
        """Predicted time from its dispatch to its first token, on the fastest endpoint; 0 while nothing is known."""
        soonest = inf
        for endpoint in self._endpoints.eligible(request):
            soonest = min(soonest, endpoint.prefill_seconds(request))
        return soonest if soonest < inf else 0.0

    def queue_budget(self, request: RequestRecord) -> float:
        """Longest wait of a request while an endpoint is live: what its predicted prefill leaves of its TTFT target."""
        target, ttl = self.target(request), self._policy.ttl
        if target is None:
            return ttl
        return min(ttl, max(target - self.prefill(request), target * TUNING.waiting_share))

    def deadline(self, request: RequestRecord) -> float:
        """Time at which the wait of a request ends."""
        policy, endpoints = self._policy, self._endpoints
        longest = request.queue_budget if endpoints.live else policy.no_endpoint_ttl
        return min(
            max(request.arrived_at, endpoints.since) + longest,
            request.arrived_at + policy.ttl + policy.no_endpoint_ttl,
        )

    def overdue(self, request: RequestRecord) -> Outcome:
        """Outcome of a request whose deadline has passed."""
        if not self._endpoints.live:
            return Outcome.NO_ENDPOINT
        return Outcome.QUEUE_TIMEOUT if request.queue_budget >= self._policy.ttl else Outcome.WAIT_TOO_LONG

    def predicted(self, request: RequestRecord, now: float) -> float | None:
        """Predicted wait of a request that waits or would wait; None while no rate is known.

        It is (service ahead of it + tokens that must become free for it) / drain rate.
        """
        rate = self.rate(now)
        if not rate:
            return None
        arrival = request.arrival
        own = request.cost if request.state is State.WAITING else 0.0
        ahead = self._queue.ahead(arrival.band, arrival.flow, request.lane, own)
        service = ahead.service(request.cost) if ahead.urgent or ahead.same else 0.0
        short = inf
        for endpoint in self._endpoints.eligible(request):
            short = min(short, deficit(endpoint, request, now))
        return (service + (short if short < inf else 0.0)) / rate

    def full_with(self, request: RequestRecord) -> bool:
        """Whether the queue is over its bounds with this request."""
        queue, policy = self._queue, self._policy
        requests, size = (0, 0) if request.state is State.WAITING else (1, request.arrival.body_bytes)
        return queue.depth + requests > policy.max_requests or queue.bytes + size > policy.max_bytes

    def gives_way(self, request: RequestRecord) -> RequestRecord | None:
        """The waiting request that gives up its place for this one if the queue is full; see `Queue.last`."""
        return self._queue.last(request, Most(self._policy.max_requests, self._policy.max_bytes))

    def in_vain(self, request: RequestRecord, now: float) -> bool:
        """Whether a request would surely wait longer than its queue budget.

        Never for one that may be backfilled: it waits for room that is too small for the head, not for its turn.
        """
        if not self._endpoints.live or self.target(request) is None or self._queue.may_backfill(request):
            return False
        wait = self.predicted(request, now)
        return wait is not None and wait > request.queue_budget * TUNING.sure_multiple

    def told(self, request: RequestRecord, outcome: Outcome, now: float) -> float:
        """Retry-After of a request refused with this outcome. If possible, its turn is kept until then."""
        promise = request.promise
        if promise is not None and not promise.used:  # it came back too early and is told the same time
            return _within(promise.due - now)
        pressure = self._pressure(request, outcome, now)
        if pressure is None:
            return self._jitter.after(self.comes_back_in(request, outcome, now))
        due = self.promises.grant(request, outcome, pressure, now)
        return CAP if due is None else _within(due - now)

    def would_tell(self, request: RequestRecord, outcome: Outcome, now: float) -> float | None:
        """Unjittered Retry-After of a request that is only asked about; None if unknown. Changes nothing."""
        promise = request.promise
        if promise is not None and promise.due > now:
            return _within(promise.due - now)
        pressure = self._pressure(request, outcome, now)
        if pressure is None:
            return self.comes_back_in(request, outcome, now)
        due = self.promises.moment(request, pressure, now)
        return CAP if due is None else _within(due - now)

    def _pressure(self, request: RequestRecord, outcome: Outcome, now: float) -> Pressure | None:
        """Load ahead of a refused request; None if no turn can be kept for it.

        Its wait counts up to its queue budget: the requests beyond that will be refused, too.
        """
        rate = self.rate(now) if outcome in FOR_WANT_OF_ROOM and request.arrival.key else None
        if not rate:
            return None
        wait = self.predicted(request, now) or 0.0
        return Pressure(min(wait, request.queue_budget), rate, self._queue.weight(request.arrival.band))

    def comes_back_in(self, request: RequestRecord, outcome: Outcome, now: float) -> float | None:
        """Seconds until its turn, or until its first token would come in time; None if unknown."""
        if outcome in {Outcome.DRAINING, Outcome.NO_ENDPOINT}:
            return None
        wait = self.predicted(request, now)
        return wait - request.queue_budget if wait is not None and outcome is Outcome.WAIT_TOO_LONG else wait

    def rate(self, now: float) -> float | None:
        """Tokens of service per second, measured under pressure, else taken by requests in flight; None if unknown."""
        measured = self.drain_rate.rate(now)
        if measured is not None:
            return measured
        rates = [rate for e in self._endpoints.live if (rate := e.service_rate) is not None]
        return sum(rates) if rates else None


def _within(seconds: float) -> float:
    return min(max(seconds, FLOOR), CAP)
