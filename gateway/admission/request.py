"""The controller's record of one request."""

from gateway.admission.events import Arrived, EndpointId
from gateway.admission.footprint import Footprint
from gateway.admission.lifecycle import TRANSITIONS, State, Trigger


class Request:
    """What is known of a request from its arrival to its end."""

    __slots__ = (
        "_footprints",
        "arrival",
        "arrived_at",
        "avoid",
        "failures",
        "lane",
        "order",
        "state",
        "ticket",
    )

    def __init__(self, arrival: Arrived, now: float) -> None:
        self.arrival = arrival
        self.arrived_at = now
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
        self._footprints: dict[tuple[int, bool], Footprint] = {}

    def take(self, trigger: Trigger) -> bool:
        """Go where the table says; False, and nothing changes, where it does not list this."""
        state = TRANSITIONS.get((self.state, trigger))
        if state is None:
            return False
        self.state = state
        return True

    def footprint(self, block_size: int, *, shares_prefix: bool) -> Footprint:
        """What it would hold on an endpoint with such blocks."""
        key = (block_size, shares_prefix)
        footprint = self._footprints.get(key)
        if footprint is None:
            footprint = self._footprints[key] = Footprint(self.arrival.demand, block_size, shares_prefix=shares_prefix)
        return footprint
