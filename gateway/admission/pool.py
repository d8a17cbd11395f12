"""The state of one model's pool, from which decisions are made."""

from collections.abc import Iterable

from gateway.admission.limits.standing import Exceeded, Limit
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.presence import Presence
from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.placing.rules import holds_back
from gateway.admission.policy import Mode, Policy
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.queueing.headroom import Headroom
from gateway.admission.queueing.kv_shares import KvShares
from gateway.admission.queueing.queue import Queue
from gateway.admission.queueing.waits import Waits


class Pool:
    """The endpoints of one model, its queue, the lengths learned, and the policy in force.

    Attributes:
        shares: What flows hold that have a share of the KV cache.
        held: Flows whose request that was offered last was held back for its flow's sake.
        draining: Whether the gateway shuts down and takes no new requests.
    """

    __slots__ = ("draining", "endpoints", "headroom", "held", "policy", "predictor", "queue", "shares", "waits")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.predictor = Predictor()
        self.queue = Queue(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self.endpoints = Endpoints(policy, self.predictor)
        self.waits = Waits(policy, self.endpoints, self.queue)
        self.headroom = Headroom(policy.weights)
        self.shares = KvShares(policy.kv_shares)
        self.held: set[str] = set()
        self.draining = False

    def govern(self, policy: Policy, now: float) -> None:
        """Apply another policy."""
        self.policy = policy
        self.queue.govern(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self.headroom.govern(policy.weights)
        self.shares = KvShares(policy.kv_shares)
        self.held.clear()
        self.waits.govern(policy)
        self.endpoints.govern(policy, now)

    def lane(self, request: RequestRecord) -> LaneKey | None:
        """Lane of a request in the queue; None if it fits no known endpoint and may not be tried."""
        lane = self.endpoints.lane(request)
        return self.endpoints.any_lane(request) if lane is None and self.policy.mode is Mode.OBSERVE else lane

    def weigh(self, request: RequestRecord) -> None:
        """Set the cost, the queue budget and the deadline of a request."""
        request.weigh(self.predictor)
        request.queue_budget = self.waits.queue_budget(request)
        request.deadline = self.waits.deadline(request)

    def restrain(self, request: RequestRecord, now: float) -> None:
        """Set what the rules hold against a request for the sake of other flows. Due before it is placed."""
        request.spare = self._spare(request, now)
        if self.policy.holds_back_flows:
            live = self.endpoints.live
            request.over_share = self.over_share(request)
            request.held_back = bool(live) and all(holds_back(endpoint, request, now) for endpoint in live)

    def held_back(self) -> int:
        """Number of waiting requests whose flows are held back: they do not wait for room."""
        return sum(self.queue.waiting(flow) for flow in self.held)

    def too_large(self, request: RequestRecord) -> Exceeded | None:
        """The limit of a request that would surely hold more than its flow's share, alone; None if it may fit."""
        flow = request.arrival.flow
        if flow not in self.shares.shares or self.policy.mode is Mode.OBSERVE:
            return None
        asked = request.size + request.sequences
        exceeded = self.over_limit(flow, asked)
        return exceeded if exceeded is not None and asked > exceeded.limit else None

    def over_limit(self, flow: str, asked: int) -> Exceeded | None:
        """A flow's share of the KV cache as a limit; None while the cache's size is unknown."""
        room = _room(e for e in self.endpoints if e.presence is not Presence.GONE)
        if room is None:
            return None
        return Exceeded(Limit.KV, int(self.shares.shares[flow] * room), asked, None)

    def over_share(self, request: RequestRecord) -> float:
        """Tokens by which its flow would hold more than its share."""
        flow, live = request.arrival.flow, self.endpoints.live
        room = _room(live) if flow in self.shares.shares else None
        if room is None or not live:
            return 0.0
        # It finds what its flow's requests hold already on one of the endpoints.
        tokens = min(e.final_tokens(request) - self.shares.finds(flow, e.id, request.arrival.prefix) for e in live)
        return self.shares.over(flow, tokens, room)

    def _spare(self, request: RequestRecord, now: float) -> float:
        """Tokens that a request must leave free on its endpoint for other flows."""
        spare = self.headroom.spare(request.arrival.flow, self.queue.waiting, now)
        live = self.endpoints.live
        return spare / len(live) if spare and live else 0.0


def _room(endpoints: Iterable[EndpointRecord]) -> int | None:
    """Tokens of the endpoints' KV caches; None if the size of one is unknown, or there is none."""
    room = 0
    for endpoint in endpoints:
        capacity = endpoint.capacity
        if capacity.kv_blocks is None:
            return None
        room += capacity.kv_blocks * capacity.block_size
    return room or None
