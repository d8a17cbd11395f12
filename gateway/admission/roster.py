"""The endpoints of one model: which are there, which take traffic, and who can go where."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf

from gateway.admission.endpoint import UNBOUNDED, Endpoint
from gateway.admission.events import Capacity, EndpointId
from gateway.admission.lane import LaneKey
from gateway.admission.policy import Policy
from gateway.admission.predictor import Predictor
from gateway.admission.request import Request


class Roster:
    """Every endpoint that is known, up or down, until it is gone and nothing of ours is on it any more."""

    def __init__(self, policy: Policy, predictor: Predictor) -> None:
        self._policy = policy
        self._predictor = predictor
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self.reaches: tuple[int, ...] = ()
        """The `longest_prompt` of every endpoint that is not gone, sorted: what the lanes of requests depend on."""
        self.live: list[Endpoint] = []
        """Those that take traffic, by id."""
        self._common_reach = -1
        """The longest prompt that every one of these can serve, tokens."""
        self.since = -inf
        """When the first came to be live, or the last ceased to be."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def get(self, endpoint: EndpointId) -> Endpoint | None:
        """The endpoint of that id."""
        return self._endpoints.get(endpoint)

    def came_up(self, key: EndpointId, capacity: Capacity, now: float) -> None:
        """An endpoint takes traffic, with this capacity."""
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            self._endpoints[key] = Endpoint(key, capacity, self._policy, self._predictor)
        else:
            endpoint.came_up(capacity)
            endpoint.settle(now)
        self._changed(now)

    def went_down(self, key: EndpointId, reason: str, now: float, *, gone: bool = False) -> None:
        """An endpoint takes no new traffic, for now or for good."""
        endpoint = self._endpoints.get(key)
        if endpoint is not None:
            endpoint.went_down(reason)
            endpoint.gone = endpoint.gone or gone
            self.settle(endpoint, now)
            self._changed(now)

    def govern(self, policy: Policy, now: float) -> None:
        """Go by another policy from now on."""
        self._policy = policy
        for endpoint in list(self._endpoints.values()):
            endpoint.govern(policy)
            self.settle(endpoint, now)

    def settle(self, endpoint: Endpoint, now: float) -> None:
        """Bring an endpoint's account up to this time."""
        endpoint.settle(now)
        if endpoint.gone and endpoint.idle:
            self._endpoints.pop(endpoint.id, None)

    @property
    def reach(self) -> int:
        """The longest prompt that any of them can serve, tokens. There is one."""
        return self.reaches[-1]

    def lane(self, request: Request) -> LaneKey | None:
        """Where a request stands in the queue; None when it fits no endpoint that is known, up or down."""
        reaches = self.reaches
        index = bisect_left(reaches, request.longest_prompt)
        if index < len(reaches):
            return reaches[index], request.avoid
        return None if reaches else (UNBOUNDED, request.avoid)

    def eligible(self, request: Request) -> Sequence[Endpoint]:
        """Live endpoints that can serve it; the one that failed on it only where it is the only one."""
        longest, fitting = request.longest_prompt, self.live
        if longest > self._common_reach:
            fitting = [e for e in fitting if e.longest_prompt >= longest]
        if request.avoid is not None and len(fitting) > 1:
            return [e for e in fitting if e.id != request.avoid]
        return fitting

    def _changed(self, now: float) -> None:
        was_live = bool(self.live)
        self.live = [self._endpoints[key] for key in sorted(self._endpoints) if self._endpoints[key].up]
        if was_live != bool(self.live):
            self.since = now
        self._common_reach = min((e.longest_prompt for e in self.live), default=-1)
        self.reaches = tuple(sorted({e.longest_prompt for e in self._endpoints.values() if not e.gone}))
