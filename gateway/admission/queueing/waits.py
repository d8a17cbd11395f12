"""The waits of requests, predicted and allowed, and the bounds of the queue.

`retry_after.py` says when a refused request should come back.
"""

from math import inf

from gateway.admission.account.drain_rate import DrainRate
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.request_lifecycle import State
from gateway.admission.placing.rules import tokens_to_free
from gateway.admission.policy import Policy
from gateway.admission.queueing.band_queue import QueueBounds
from gateway.admission.queueing.queue import Queue
from gateway.admission.tuning import TUNING


class Waits:
    """Predicted and allowed waits of requests in one pool, seconds."""

    def __init__(self, policy: Policy, endpoints: Endpoints, queue: Queue) -> None:
        self._policy = policy
        self._endpoints = endpoints
        self._queue = queue
        self.drain_rate = DrainRate()
        self.ready_at: float | None = None
        """When an engine that is not up is expected to be."""

    def govern(self, policy: Policy) -> None:
        """Apply another policy."""
        self._policy = policy

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
        """Longest wait of a request while an endpoint that takes it is live: what prefill leaves of its TTFT target."""
        target, ttl = self.target(request), self._policy.ttl
        if target is None:
            return ttl
        return min(ttl, max(target - self.prefill(request), target * TUNING.waiting_share))

    def deadline(self, request: RequestRecord) -> float:
        """Time at which the wait of a request ends."""
        policy, endpoints = self._policy, self._endpoints
        came = request.arrived_at
        unserved = policy.no_endpoint_ttl
        if self.ready_at is not None:
            unserved = max(unserved, TUNING.sure_multiple * (self.ready_at - came))
        longest = request.queue_budget if endpoints.serve(request) else unserved
        return min(max(came, endpoints.since) + longest, came + policy.ttl + unserved)

    def overdue(self, request: RequestRecord) -> Outcome:
        """Outcome of a request whose deadline has passed."""
        if not self._endpoints.serve(request):
            return Outcome.NO_ENDPOINT
        return Outcome.QUEUE_TIMEOUT if request.queue_budget >= self._policy.ttl else Outcome.WAIT_TOO_LONG

    def predicted(self, request: RequestRecord, now: float) -> float | None:
        """Predicted wait of a request that waits or would wait; None while no rate is known.

        It is (service ahead of it + tokens that must become free for it) / drain rate.
        """
        arrival = request.arrival
        own = request.cost if request.state is State.WAITING else 0.0
        ahead = self._queue.ahead(arrival.band, arrival.flow, request.lane, own)
        return self.behind(request, ahead.service(request.cost) if ahead.urgent or ahead.same else 0.0, now)

    def behind(self, request: RequestRecord, service: float, now: float) -> float | None:
        """Predicted wait of a request with this service ahead of it, tokens; None while no rate is known."""
        rate = self.rate(now)
        ready_at = None if self._endpoints.serve(request) else self.ready_at
        start = 0.0 if ready_at is None else max(0.0, ready_at - now)
        if not rate:
            return start or None
        short = inf
        for endpoint in self._endpoints.eligible(request):
            short = min(short, tokens_to_free(endpoint, request, now))
        return start + (service + (short if short < inf else 0.0)) / rate

    def full_with(self, request: RequestRecord) -> bool:
        """Whether the queue is over its bounds with this request."""
        queue, policy = self._queue, self._policy
        requests, size = (0, 0) if request.state is State.WAITING else (1, request.arrival.body_bytes)
        return queue.depth + requests > policy.max_requests or queue.bytes + size > policy.max_bytes

    def gives_way(self, request: RequestRecord) -> RequestRecord | None:
        """The waiting request that gives up its place for this one if the queue is full; see `Queue.displaced_by`."""
        return self._queue.displaced_by(request, QueueBounds(self._policy.max_requests, self._policy.max_bytes))

    def in_vain(self, request: RequestRecord, now: float) -> bool:
        """Whether a request would surely wait longer than its queue budget.

        Never for one that may be backfilled: it need not wait for its turn. Room too small for the head may do for it.
        Nor while others wait for an endpoint that is away: not all that is ahead of it goes before it.
        """
        if not self._endpoints.serve(request) or self.target(request) is None or self._queue.may_backfill(request):
            return False
        if self._queue.longest > self._endpoints.longest_live:
            return False
        wait = self.predicted(request, now)
        return wait is not None and wait > request.queue_budget * TUNING.sure_multiple

    def rate(self, now: float) -> float | None:
        """Tokens of service per second, measured under pressure, else taken by requests in flight; None if unknown.

        While long answers or large groups fill the endpoints hardly anything completes. Then it is what they generate.
        """
        measured = self.drain_rate.rate(now)
        if measured is not None:
            generated = self._endpoints.generation_rate(now)
            return generated if generated >= 1.0 and measured < generated / 2 else measured  # less fades away
        rates = [rate for e in self._endpoints.live if (rate := e.service_rate) is not None]
        return sum(rates) if rates else None
