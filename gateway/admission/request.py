"""The controller's record of one request."""

from math import inf

from gateway.admission.events import Arrived, EndpointId
from gateway.admission.footprint import Footprint, Paging
from gateway.admission.lifecycle import TRANSITIONS, State, Trigger
from gateway.admission.predictor import Kind, Predictor
from gateway.admission.shedding import Promise

MEDIAN = 0.5
OUTPUT_WEIGHT = 2
"""What an output token takes of the engine beside a prompt token (Virtual Token Counter, arXiv 2401.00588)."""


def service(prompt_tokens: int, generated: int) -> float:
    """Tokens of service: what a request takes of its pool, with so many tokens generated over all its sequences."""
    return float(prompt_tokens + OUTPUT_WEIGHT * generated)


class Request:
    """What is known of a request from its arrival to its end."""

    __slots__ = (
        "_expected",
        "_footprint",
        "_level",
        "_paging",
        "arrival",
        "arrived_at",
        "avoid",
        "cost",
        "deadline",
        "failures",
        "kind",
        "lane",
        "longest_prompt",
        "order",
        "passed",
        "patience",
        "promise",
        "sequences",
        "size",
        "spare",
        "state",
        "ticket",
    )

    def __init__(self, arrival: Arrived, now: float, kind: Kind) -> None:
        demand = arrival.demand
        self.arrival = arrival
        self.arrived_at = now
        self.kind = kind
        self.size = demand.prompt_tokens
        """Tokens of KV cache that it needs to start."""
        self.longest_prompt = demand.longest_prompt
        self.sequences = demand.sequences
        self.cost = 0.0
        """Tokens of service it is expected to take, see `service`."""
        self.patience = inf
        """Seconds it may wait while an endpoint is live, and `deadline`, when its wait is over."""
        self.deadline = inf
        self.promise: Promise | None = None
        """What it was told when it was refused before, where it comes back. Used: it has the turn it had."""
        self.spare = 0.0
        """Tokens that it must leave free where it goes, for other flows (`headroom`)."""
        self.passed = 0
        """Smaller ones that went before it because it did not fit."""
        self.state = State.NEW
        self.failures = 0
        """Endpoints that failed on it."""
        self.avoid: EndpointId | None = None
        """The endpoint that failed last: another is tried, where there is another."""
        self.lane: tuple[int, EndpointId | None] = (0, None)
        """Where it stands in the queue."""
        self.order = 0
        """Its turn there, given when it first waits; 0 before."""
        self.ticket = 0
        """Numbers its stay there: it may come back."""
        self._paging: Paging | None = None
        self._footprint: Footprint | None = None
        self._level: float | None = None
        self._expected = 0

    def take(self, trigger: Trigger) -> bool:
        """Go where the table says; False, and nothing changes, where it does not list this."""
        state = TRANSITIONS.get((self.state, trigger))
        if state is None:
            return False
        self.state = state
        return True

    def weigh(self, predictor: Predictor) -> None:
        """Predict what it takes, as it comes to wait."""
        self.cost = service(self.size, self._predicted(predictor, MEDIAN) * self.sequences)
        self._level = None

    def expected(self, predictor: Predictor, level: float) -> int:
        """Tokens that each of its sequences is predicted to end with, at this level: asked anew when that changes."""
        if self._level != level:
            self._level, self._expected = level, self._predicted(predictor, level)
        return self._expected

    def footprint(self, paging: Paging) -> Footprint:
        """What it would hold on an endpoint with such blocks."""
        footprint = self._footprint
        if footprint is None or self._paging != paging:  # the endpoints of a pool seldom differ in this
            block_size, shares_prefix = paging
            footprint = self._footprint = Footprint(self.arrival.demand, block_size, shares_prefix=shares_prefix)
            self._paging = paging
        return footprint

    def _predicted(self, predictor: Predictor, level: float) -> int:
        return predictor.predict(self.kind, level, 0, max(1, self.arrival.demand.max_tokens))
