"""The state of one model's pool, from which decisions are made."""

from collections.abc import Iterable

from gateway.admission.limits.limit import Exceeded, Limit
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.presence import Presence
from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.placing.rules import throttles, throttling
from gateway.admission.policy import Mode, Policy
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.queueing.headroom import Headroom, Kept
from gateway.admission.queueing.kv_shares import KvShares
from gateway.admission.queueing.promises import Promises
from gateway.admission.queueing.queue import Queue
from gateway.admission.queueing.retry_after import RetryAfter
from gateway.admission.queueing.waits import Waits


class Pool:
    """The endpoints of one model, its queue, the lengths learned, and the policy in force.

    Attributes:
        tokens, places: Headroom of tokens and of sequences in flight.
        kv_shares: What flows hold that have a share of the KV cache.
        throttling: The rules in force that throttle a flow.
        throttled_flows: Flows whose last offered request waits only because its flow is throttled.
        draining: Whether the gateway shuts down and takes no new requests.
    """

    __slots__ = (
        "draining",
        "endpoints",
        "kv_shares",
        "places",
        "policy",
        "predictor",
        "promises",
        "queue",
        "retry_after",
        "throttled_flows",
        "throttling",
        "tokens",
        "waits",
    )

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.predictor = Predictor()
        self.queue = Queue(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self.endpoints = Endpoints(policy, self.predictor)
        self.waits = Waits(policy, self.endpoints, self.queue)
        self.promises = Promises(policy.weights)
        self.retry_after = RetryAfter(self.waits, self.queue, self.promises)
        self.tokens, self.places = Headroom(policy.weights), Headroom(policy.weights, least=1.0)
        self.kv_shares = KvShares(policy.kv_shares)
        self.throttling = throttling(policy)
        self.throttled_flows: set[str] = set()
        self.draining = False

    def govern(self, policy: Policy, now: float) -> None:
        """Apply another policy."""
        self.policy = policy
        self.queue.govern(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self.tokens.govern(policy.weights)
        self.places.govern(policy.weights)
        self.kv_shares = KvShares(policy.kv_shares)
        self.throttling = throttling(policy)
        self.throttled_flows.clear()
        self.waits.govern(policy)
        self.promises.govern(policy.weights)
        self.endpoints.govern(policy, now)

    def lane(self, request: RequestRecord) -> LaneKey | None:
        """Lane of a request in the queue; None if it fits no known endpoint and may not be tried."""
        lane = self.endpoints.lane(request)
        return self.endpoints.any_lane(request) if lane is None and self.policy.mode is Mode.OBSERVE else lane

    def estimate(self, request: RequestRecord) -> None:
        """Set the cost, the queue budget and the deadline of a request."""
        request.estimate_cost(self.predictor)
        request.queue_budget = self.waits.queue_budget(request)
        request.deadline = self.waits.deadline(request)

    def kept(self, now: float) -> tuple[Kept, Kept]:
        """Tokens and places kept as of now, for `apply_shares`."""
        return self.tokens.kept(self.queue.waiting, now), self.places.kept(self.queue.waiting, now)

    def apply_shares(self, request: RequestRecord, kept: tuple[Kept, Kept], now: float) -> None:
        """Set what a request owes to other flows: the room to leave free, and how far its own is over its share.

        Due before it is placed.
        """
        flow, band, live = request.arrival.flow, request.arrival.band, self.endpoints.live
        endpoints = len(live) or 1
        tokens, places = kept
        request.spare = tokens.spare(flow, band, 0.0) / endpoints
        request.spare_places = 0.0
        if any(endpoint.sequence_limit.value is not None for endpoint in live):
            request.spare_places = places.spare(flow, band, request.sequences) / endpoints
        request.as_a_whole = request.spare_places > 0 and request.sequences > 1 and self.places.starves(flow, band, now)
        if self.throttling:
            request.over_share = self.over_share(request)
            request.throttled = bool(live) and all(throttles(e, request, now, self.throttling) for e in live)

    def note_waiting(self, request: RequestRecord, now: float) -> None:
        """Note a request that begins to wait: its flow is active, too, if it gets nothing."""
        flow, band = request.arrival.flow, request.arrival.band
        self.places.asked(flow, band, request.sequences, now)
        if self.endpoints.live:
            self.tokens.asked(flow, band, min(endpoint.final_tokens(request) for endpoint in self.endpoints.live), now)

    def note_refused(self, request: RequestRecord, now: float) -> None:
        """Note a request that was refused for want of room, if it wanted a place, and not a target of its own."""
        live = self.endpoints.live
        if request.arrival.ttft_target is None and live and all(endpoint.full for endpoint in live):
            self.places.refused(request.arrival.flow, now)

    def note_throttled(self, request: RequestRecord) -> None:
        """Note whether the flow of a request that is offered waits only because it is throttled."""
        if self.throttling:
            if request.throttled:
                self.throttled_flows.add(request.arrival.flow)
            else:
                self.throttled_flows.discard(request.arrival.flow)

    def waiting_throttled(self) -> int:
        """Number of waiting requests of throttled flows: they do not wait for room."""
        return sum(self.queue.waiting(flow) for flow in self.throttled_flows)

    def too_large(self, request: RequestRecord) -> Exceeded | None:
        """The limit of a request that would surely hold more than its flow's share, alone; None if it may fit."""
        flow = request.arrival.flow
        if flow not in self.kv_shares.shares or self.policy.mode is Mode.OBSERVE:
            return None
        asked = request.size + request.sequences
        exceeded = self.over_limit(flow, asked)
        return exceeded if exceeded is not None and asked > exceeded.limit else None

    def over_limit(self, flow: str, asked: int) -> Exceeded | None:
        """A flow's share of the KV cache as a limit; None while the cache's size is unknown."""
        room = _room(e for e in self.endpoints if e.presence is not Presence.GONE)
        if room is None:
            return None
        return Exceeded(Limit.KV, int(self.kv_shares.shares[flow] * room), asked, None)

    def over_share(self, request: RequestRecord) -> float:
        """Tokens by which its flow would hold more than its share."""
        flow, live = request.arrival.flow, self.endpoints.live
        room = _room(live) if flow in self.kv_shares.shares else None
        if room is None or not live:
            return 0.0
        # It finds what its flow's requests hold already on one of the endpoints.
        tokens = min(e.final_tokens(request) - self.kv_shares.finds(flow, e.id, request.arrival.prefix) for e in live)
        return self.kv_shares.over(flow, tokens, room)


def _room(endpoints: Iterable[EndpointRecord]) -> int | None:
    """Tokens of the endpoints' KV caches; None if the size of one is unknown, or there is none."""
    room = 0
    for endpoint in endpoints:
        capacity = endpoint.capacity
        if capacity.kv_blocks is None:
            return None
        room += capacity.kv_blocks * capacity.block_size
    return room or None
