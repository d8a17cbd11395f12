"""The record of one request."""

from math import inf

from gateway.admission.account.footprint import Footprint, Paging
from gateway.admission.events import Arrived, EndpointId
from gateway.admission.placing.promise import Promise
from gateway.admission.placing.request_lifecycle import TRANSITIONS, State, Trigger
from gateway.admission.prediction.predictor import Kind, Predictor
from gateway.admission.tuning import TUNING

LaneKey = tuple[int, frozenset[EndpointId], int | None, EndpointId | None]
"""What decides where a request can go: the least `longest_prompt` that serves it, the endpoints to avoid, its front if
that cannot reach all endpoints, and the holder of what it goes on with."""
_NOWHERE: frozenset[EndpointId] = frozenset()


def service(prompt_tokens: int, generated: int) -> float:
    """Service that a request takes from its pool, in tokens; `generated` counts all its sequences."""
    return float(prompt_tokens + TUNING.output_weight * generated)


class Charge:
    """What a dispatched request was charged."""

    __slots__ = ("counted", "owed", "waits")

    def __init__(self, owed: float) -> None:
        self.owed = owed
        """The part of its cost that its band was owed at its dispatch (`band_share`)."""
        self.counted = 0.0
        """Service that it has had, as far as it was counted, tokens."""
        self.waits = 0.0
        """Service of the pool for which its band waits for what of that is beyond its cost, tokens."""


class RequestRecord:
    """Everything that the controller knows of a request, from its arrival to its end."""

    __slots__ = (
        "_expected_length",
        "_footprint",
        "_paging",
        "_quantile",
        "arrival",
        "arrived_at",
        "as_a_whole",
        "avoid",
        "backfilled",
        "cost",
        "deadline",
        "failures",
        "kind",
        "lacking",
        "lane",
        "longest_prompt",
        "needs",
        "order",
        "over_share",
        "promise",
        "queue_budget",
        "sequences",
        "size",
        "spare",
        "spare_places",
        "state",
        "throttled",
        "ticket",
        "whole",
    )

    def __init__(self, arrival: Arrived, now: float, kind: Kind) -> None:
        demand = arrival.demand
        self.arrival = arrival
        self.arrived_at = now - arrival.waited
        """When its wait began: at its arrival, or anew when an endpoint had it and did not answer."""
        self.kind = kind
        self.size = demand.prompt_tokens
        """Its prompt tokens."""
        self.longest_prompt = demand.longest_prompt
        self.needs = max(demand.longest_prompt, demand.least_length - 1)
        """The least `longest_prompt` of an endpoint that does not refuse its output limit."""
        self.whole = max(self.needs, demand.whole_length - 1)
        """The same of one that has room for all of that."""
        self.sequences = demand.sequences
        self.cost = 0.0
        """Expected service, see `service`."""
        self.queue_budget = inf
        """Most seconds that it may wait while an endpoint is live. `deadline` is the time at which its wait ends."""
        self.deadline = inf
        self.promise: Promise | None = None
        """The promise of its earlier refusal, if it came back. If used, it has its earlier turn."""
        self.spare = 0.0
        """Tokens that it must leave free on its endpoint for other flows (`headroom`)."""
        self.spare_places = 0.0
        """The same in sequences."""
        self.as_a_whole = False
        """Whether all its sequences must have places, so that none waits in the engine before others' requests."""
        self.over_share = 0.0
        """Tokens by which its flow would hold more than its share of the pool (`kv_shares`)."""
        self.throttled = False
        """Whether it waits because its flow is throttled, not for room (`rules.throttles`)."""
        self.backfilled = 0
        """Number of requests that were backfilled before it."""
        self.state = State.NEW
        self.failures = arrival.failures
        """Number of endpoints that failed on it."""
        self.avoid = _NOWHERE if arrival.avoid is None else frozenset({arrival.avoid})
        """The endpoint that failed on it last, those since to which its front could not connect, and `lacking`. Others
        are tried first."""
        self.lacking = _NOWHERE
        """Endpoints that do not serve what it names."""
        self.lane: LaneKey = (0, _NOWHERE, None, None)
        """Its lane in the queue."""
        self.order = 0
        """Its turn in the queue, assigned when it first waits; 0 before."""
        self.ticket = 0
        """Number of its current stay in the queue; 0 outside. It may wait more than once."""
        self._paging: Paging | None = None
        self._footprint: Footprint | None = None
        self._quantile: float | None = None
        self._expected_length = 0

    def apply(self, trigger: Trigger) -> bool:
        """Change state by the table; False without a change if the table does not list the trigger."""
        state = TRANSITIONS.get((self.state, trigger))
        if state is None:
            return False
        self.state = state
        return True

    def estimate_cost(self, predictor: Predictor) -> None:
        """Set its cost as it enters the queue."""
        length = predictor.mean(self.kind, max(1, self.arrival.demand.max_tokens))
        self.cost = service(self.size, round(length * self.sequences))
        self._quantile = None

    def expected_length(self, predictor: Predictor, quantile: float) -> int:
        """Expected length of each of its sequences at this quantile, tokens. Cached until the quantile changes."""
        if self._quantile != quantile:
            self._quantile, self._expected_length = quantile, self._predicted(predictor, quantile)
        return self._expected_length

    def footprint(self, paging: Paging) -> Footprint:
        """Its footprint on an endpoint with such blocks."""
        footprint = self._footprint
        if footprint is None or self._paging != paging:  # endpoints of a pool seldom differ in their blocks
            block_size, shares_prefix = paging
            footprint = self._footprint = Footprint(self.arrival.demand, block_size, shares_prefix=shares_prefix)
            self._paging = paging
        return footprint

    def _predicted(self, predictor: Predictor, quantile: float) -> int:
        return predictor.predict(self.kind, (quantile,), 0, max(1, self.arrival.demand.max_tokens))[0]
