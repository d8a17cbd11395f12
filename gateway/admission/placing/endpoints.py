"""The endpoints of one model."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf

from gateway.admission.events import EndpointGone, EndpointId, EndpointUp, Observed
from gateway.admission.placing.endpoint import UNBOUNDED, EndpointRecord
from gateway.admission.placing.presence import EndpointEvent, Presence
from gateway.admission.placing.reach import Reach
from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.policy import Policy
from gateway.admission.prediction.predictor import Predictor


class Endpoints:
    """All known endpoints, up or down. One that was removed stays until its last request has ended.

    A cold endpoint gets one request, unless all are cold (the rule `cold`). As the emptiest of the pool it would get
    all that comes, and all of that would wait for its first step. So it is with one that fails on all it gets
    (`failing`).
    """

    def __init__(self, policy: Policy, predictor: Predictor) -> None:
        self._policy = policy
        self._predictor = predictor
        self._endpoints: dict[EndpointId, EndpointRecord] = {}
        self.reach = Reach()
        self.longest_prompts: tuple[int, ...] = ()
        """Distinct `longest_prompt` of all endpoints that were not removed, ascending: they define the lanes."""
        self.live: list[EndpointRecord] = []
        """Endpoints that take traffic, sorted by id."""
        self._longest = -1
        """The last of `longest_prompts`."""
        self.longest_live = -1
        """Longest prompt that some live endpoint can serve, tokens."""
        self._longest_everywhere = -1
        """Longest prompt that every live endpoint can serve, tokens."""
        self.since = -inf
        """Time at which `longest_live` last changed, as when the first endpoint came or the last one went."""

    def __iter__(self) -> Iterator[EndpointRecord]:
        return iter(self._endpoints.values())

    def changes_at(self) -> float:
        """Next time at which time alone changes an endpoint, or what is in reach of a front."""
        due = self.reach.changes_at
        for endpoint in self._endpoints.values():
            if endpoint.next_change < due:  # noqa: PLR1730 - a call for each event and endpoint
                due = endpoint.next_change
        return due

    def get(self, endpoint: EndpointId) -> EndpointRecord | None:
        """The endpoint with this id, if known."""
        return self._endpoints.get(endpoint)

    def apply(self, event: EndpointEvent, now: float) -> None:
        """Note that an endpoint came up, went down or was removed."""
        key = event.endpoint
        endpoint = self._endpoints.get(key)
        if endpoint is not None:
            endpoint.apply(event)
            self.advance(endpoint, now)
        elif not isinstance(event, EndpointGone) and event.capacity is not None:
            endpoint = self._endpoints[key] = EndpointRecord(key, event.capacity, self._policy, self._predictor)
            endpoint.apply(event)
        if isinstance(event, EndpointUp):
            self.reach.found(key)
        self._refresh(now)

    def govern(self, policy: Policy, now: float) -> None:
        """Apply another policy."""
        self._policy = policy
        for endpoint in list(self._endpoints.values()):
            endpoint.govern(policy)
            self.advance(endpoint, now)

    def observe(self, endpoint: EndpointRecord, sample: Observed, now: float) -> None:
        """Take a scrape of an endpoint."""
        endpoint.observe(sample, now)
        if not endpoint.cold and endpoint.all_cold:  # maybe since an answer ended; the others go by scrapes
            self._note_cold()

    def failed(self, endpoint: EndpointRecord, request: RequestRecord, now: float) -> None:
        """Note that an endpoint failed on a request, which had no token. One that failed elsewhere says nothing of it.

        Else one bad request of a client every five seconds would keep an endpoint out: its second try waits for it.
        """
        if request.failures:
            return
        endpoint.note_failure(now)
        self._note_sound()

    def generated(self, endpoint: EndpointRecord, sent_at: float, now: float) -> None:
        """Note that an endpoint has tokens for a request of ours that was sent at that time."""
        failed = endpoint.fails
        endpoint.note_token(sent_at, now)
        if failed:
            self._note_sound()

    def advance(self, endpoint: EndpointRecord, now: float) -> None:
        """Bring an endpoint's account up to this time."""
        endpoint.advance(now)
        if endpoint.presence is Presence.GONE and not endpoint.carried:
            self._endpoints.pop(endpoint.id, None)

    def lane(self, request: RequestRecord) -> LaneKey | None:
        """Lane of a request in the queue; None if it fits no known endpoint, up or down."""
        longest_prompts = self.longest_prompts
        index = bisect_left(longest_prompts, self.least(request))
        if index < len(longest_prompts):
            return self._lane(longest_prompts[index], request)
        return None if longest_prompts else self.any_lane(request)

    def least(self, request: RequestRecord) -> int:
        """The least `longest_prompt` that serves the request: with room for all it may generate, if one live has it."""
        return request.whole if request.whole <= self.longest_live else self._needs(request)

    def serve(self, request: RequestRecord) -> bool:
        """Whether a live endpoint takes the request."""
        return self._needs(request) <= self.longest_live

    def _needs(self, request: RequestRecord) -> int:
        """The least `longest_prompt` that takes the request: without its output limit where none takes that."""
        return request.needs if request.needs <= self._longest else request.longest_prompt

    def any_lane(self, request: RequestRecord) -> LaneKey:
        """Lane of a request that is tried although it fits no known endpoint."""
        return self._lane(UNBOUNDED, request)

    def generation_rate(self, now: float) -> float:
        """Tokens of service per second that running sequences of ours generate, on all live endpoints; 0 if unknown."""
        return sum([endpoint.generation_rate(now) for endpoint in self.live])

    def eligible(self, request: RequestRecord) -> Sequence[EndpointRecord]:
        """Live endpoints that its front reaches and that can serve the request.

        The holder of what it goes on with counts alone, if it is live and lacks nothing else. One that failed on it, or
        could not be reached for it, counts only if there is no other, and one that lacks what it names only then.
        """
        longest, fitting = self.least(request), self.live
        if longest > self._longest_everywhere:
            fitting = [e for e in fitting if e.longest_prompt >= longest]
        if (holder := request.arrival.holder) is not None and holder not in request.lacking:
            fitting = [e for e in fitting if e.id == holder] or fitting
        if self.reach.until:
            fitting = [e for e in fitting if self.reach.reaches(request.arrival.request, e.id)]
        if not request.avoid:
            return fitting
        others = [e for e in fitting if e.id not in request.avoid]
        return others or [e for e in fitting if e.id not in request.lacking] or fitting

    def _lane(self, longest_prompt: int, request: RequestRecord) -> LaneKey:
        front = self.reach.limited(request.arrival.request) if self.reach.until else None
        return longest_prompt, request.avoid, front, request.arrival.holder

    def _refresh(self, now: float) -> None:
        self.live = [self._endpoints[key] for key in sorted(self._endpoints) if self._endpoints[key].live]
        longest = max((e.longest_prompt for e in self.live), default=-1)
        if longest != self.longest_live:
            self.longest_live, self.since = longest, now
        self._longest_everywhere = min((e.longest_prompt for e in self.live), default=-1)
        self._note_cold()
        self._note_sound()
        known = (e for e in self._endpoints.values() if e.presence is not Presence.GONE)
        self.longest_prompts = tuple(sorted({e.longest_prompt for e in known}))
        self._longest = max(self.longest_prompts, default=-1)

    def _note_cold(self) -> None:
        all_cold = all(endpoint.cold for endpoint in self.live)
        for endpoint in self.live:
            endpoint.all_cold = all_cold

    def _note_sound(self) -> None:
        longest = max((endpoint.longest_prompt for endpoint in self.live if not endpoint.fails), default=-1)
        for endpoint in self.live:
            endpoint.beside_sound = endpoint.longest_prompt <= longest
