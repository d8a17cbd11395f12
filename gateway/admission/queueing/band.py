"""The queue of one priority band."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.queueing.fairness import Fairness, Flow, Share
from gateway.admission.queueing.lane import Lane

MANY = 32
"""Most flows whose service ahead is computed one by one; for more, it is bounded for all of them at once."""
STEPS = 4
"""Most requests of a flow that are added up one by one."""
ROUNDING = 1e-6
"""Most difference between two sums of the same costs, tokens."""


class Most(NamedTuple):
    """The bounds of a queue."""

    requests: int
    bytes: int

    def filled_by(self, flow: Flow, requests: int = 0, size: int = 0) -> float:
        """Part of the queue that a flow fills, with so many more requests and bytes, divided by its weight.

        The larger of its parts in requests and in bytes counts (dominant resource fairness, NSDI 2011).
        """
        part = max((flow.waiting + requests) / max(self.requests, 1), (flow.bytes + size) / max(self.bytes, 1))
        return part / flow.weight


class BandQueue:
    """Requests that wait in one band: flows share it fairly, and lanes separate them by the endpoints they fit."""

    def __init__(self, number: int, share: float, weights: Mapping[str, float]) -> None:
        self.number = number
        self.share = Share(share)
        self.fairness = Fairness(weights)
        self.lanes: dict[LaneKey, Lane] = {}
        self.depth = 0
        self.cost = 0.0

    def govern(self, share: float, weights: Mapping[str, float]) -> None:
        """Apply another share of all service, and other weights."""
        self.share.resize(share)
        self.fairness.govern(weights)

    def push(self, request: RequestRecord) -> None:
        """Enter a request into its lane."""
        lanes, key = self.lanes, request.lane
        lane = lanes.get(key)
        least = top = None
        if lanes and request.arrival.flow not in self.fairness.active:
            least, top = self._front(lane)
        if lane is None:
            lane = lanes[key] = Lane()
        lane.push(request, self.fairness.join(request, least, top))
        self.depth += 1
        self.cost += request.cost

    def remove(self, request: RequestRecord) -> None:
        """Take out a request."""
        lane = self.lanes[request.lane]
        lane.remove(request)
        if not lane:
            del self.lanes[request.lane]
        self.fairness.leave(request)
        self.depth -= 1
        self.cost = self.cost - request.cost if self.depth else 0.0

    def settle(self, flow: str, tokens: float) -> None:
        """Charge a flow for service beyond what it was charged before, or refund it (negative `tokens`)."""
        if self.fairness.charge(flow, tokens):
            for lane in self.lanes.values():
                lane.refunded(self.fairness.active[flow])

    def head(self, ended: set[Lane]) -> RequestRecord | None:
        """The request that goes first, except those of lanes that have ended; None without any."""
        lanes = self.lanes
        if len(lanes) == 1:  # the usual case
            (lane,) = lanes.values()
            return None if lane in ended else lane.head()
        places = [(place, lane) for lane in lanes.values() if lane not in ended and (place := lane.place()) is not None]
        return min(places)[1].head() if places else None

    def aside(self) -> dict[str, float]:
        """Cost of the requests that are set aside, by flow."""
        costs: dict[str, float] = {}
        for lane in self.lanes.values():
            for name, line in lane.aside.items():
                costs[name] = costs.get(name, 0.0) + line.cost
        return costs

    def ahead(self, flow: str, key: LaneKey | None) -> float:
        """Service that this band gives before a new request of that flow, tokens.

        What other flows have set aside is left out.
        """
        if not self.depth:
            return 0.0
        fairness, aside = self.fairness, self.aside()
        mine = fairness.active.get(flow)
        if mine is not None:
            turn, ahead = mine.counter + mine.backlog / mine.weight, mine.backlog
        else:
            least, top = self._front(None if key is None else self.lanes.get(key))
            turn, ahead = fairness.start(flow, least, top), 0.0
        others = fairness.active if len(fairness.active) <= MANY + 1 else fairness.several
        cost, weight, one_each = self.cost - ahead, fairness.weight, fairness.one_each  # of flows not yet added
        if mine is not None:
            weight, one_each = weight - mine.weight, one_each - mine.largest
        cost -= sum([held for name, held in aside.items() if name != flow])
        for other in islice(others.values(), MANY + 1):
            if other is mine:
                continue
            backlog, of_all = other.backlog - aside.get(other.name, 0.0), other.weight
            cost, weight, one_each = cost - backlog, weight - of_all, one_each - other.largest
            within = (turn - other.counter) * of_all + ROUNDING
            if within >= backlog:
                ahead += backlog
            elif within >= 0:
                ahead += self._served(other, within)
        if len(fairness.active) > len(others) or len(others) > MANY + 1:
            least = min((place[0] for place in self._places()), default=turn)
            ahead += min(cost, max(0.0, turn - least) * weight + one_each + ROUNDING)
        return ahead

    def last(self, flow: str) -> RequestRecord | None:
        """The last request of a flow that has no promise; None if it has none here."""
        of_lanes = [found for lane in self.lanes.values() if (found := lane.last(flow)) is not None]
        return max(of_lanes, key=lambda request: request.order, default=None)

    def crowding(self, most: Most) -> Flow:
        """The flow that fills the most of the queue. The band must not be empty."""
        return max(self.fairness.active.values(), key=most.filled_by)

    def turn(self, request: RequestRecord, lane: Lane) -> float:
        """The counter of its flow at the turn of its last request, or of a new one."""
        flow = self.fairness.active.get(request.arrival.flow)
        if flow is None:
            return self.fairness.start(request.arrival.flow, *self._front(lane))
        waits = request.cost if request.ticket else 0.0
        return flow.counter + (flow.backlog - waits) / flow.weight

    def relane(self, lane_of: Callable[[RequestRecord], LaneKey]) -> None:
        """Sort all requests into lanes again."""
        waiting = sorted((request for lane in self.lanes.values() for request in lane), key=lambda r: r.order)
        self.lanes.clear()
        for request in waiting:
            request.lane = lane_of(request)
            lane = self.lanes.get(request.lane)
            if lane is None:
                lane = self.lanes[request.lane] = Lane()
            lane.push(request, self.fairness.active[request.arrival.flow])

    def _front(self, lane: Lane | None) -> tuple[float | None, float | None]:
        """The counter at the head of a lane, and the highest counter at the head of any lane; None without a head."""
        place = None if lane is None else lane.place()
        least = None if place is None else place[0]
        if least is not None and len(self.lanes) == 1:
            return least, least
        return least, max((place[0] for place in self._places()), default=None)

    def _places(self) -> Iterator[tuple[float, int]]:
        """Places of the heads of all lanes."""
        return (place for lane in self.lanes.values() if (place := lane.place()) is not None)

    def _served(self, flow: Flow, within: float) -> float:
        """Service given to a flow while its counter advances by `within`: all requests that begin by then."""
        if within < flow.largest and len(self.lanes) == 1:
            (lane,) = self.lanes.values()
            served = 0.0
            for request in islice(lane.line(flow.name), STEPS):
                served += request.cost
                if served > within:
                    return served
        return min(flow.backlog, within + flow.largest)
