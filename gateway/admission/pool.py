"""The state of one model's pool, from which decisions are made."""

from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.policy import Mode, Policy
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.queueing.headroom import Headroom
from gateway.admission.queueing.queue import Queue
from gateway.admission.queueing.waits import Waits


class Pool:
    """The endpoints of one model, its queue, the lengths learned, and the policy in force.

    Attributes:
        draining: Whether the gateway shuts down and takes no new requests.
    """

    __slots__ = ("draining", "endpoints", "headroom", "policy", "predictor", "queue", "waits")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.predictor = Predictor()
        self.queue = Queue(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self.endpoints = Endpoints(policy, self.predictor)
        self.waits = Waits(policy, self.endpoints, self.queue)
        self.headroom = Headroom(policy.weights)
        self.draining = False

    def govern(self, policy: Policy, now: float) -> None:
        """Apply another policy."""
        self.policy = policy
        self.queue.govern(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self.headroom.govern(policy.weights)
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

    def spare(self, request: RequestRecord, now: float) -> float:
        """Tokens that a request must leave free on its endpoint for other flows."""
        spare = self.headroom.spare(request.arrival.flow, self.queue.waiting, now)
        live = self.endpoints.live
        return spare / len(live) if spare and live else 0.0
