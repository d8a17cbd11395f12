"""The queue of one priority band."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.queueing.band_share import BandShare
from gateway.admission.queueing.flow_fairness import Fairness, Flow
from gateway.admission.queueing.lane import Lane

MANY = 32
"""Most flows whose service ahead is computed one by one. For the others one common bound is used."""
STEPS = 4
"""Most requests of a flow that are added up one by one."""
ROUNDING = 1e-6
"""Most difference between two sums of the same costs, tokens."""


class QueueBounds(NamedTuple):
    """The bounds of a queue."""

    requests: int
    bytes: int

    def filled_by(self, flow: Flow, requests: int = 0, size: int = 0) -> float:
        """The part of the queue that a flow would fill with so many more requests and bytes, divided by its weight.

        The larger of its parts in requests and in bytes counts (dominant resource fairness, NSDI 2011).
        """
        part = max((flow.waiting + requests) / max(self.requests, 1), (flow.bytes + size) / max(self.bytes, 1))
        return part / flow.weight


class BandQueue:
    """Requests that wait in one band: flows share it fairly, and lanes separate them by the endpoints they fit."""

    def __init__(self, number: int, share: float, weights: Mapping[str, float]) -> None:
        self.number = number
        self.share = BandShare(share)
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
        ranks = [(rank, lane) for lane in lanes.values() if lane not in ended and (rank := lane.rank()) is not None]
        return min(ranks)[1].head() if ranks else None

    def aside(self) -> dict[str, float]:
        """Cost of the requests that are set aside, by flow."""
        costs: dict[str, float] = {}
        for lane in self.lanes.values():
            for name, queue in lane.aside.items():
                costs[name] = costs.get(name, 0.0) + queue.cost
        return costs

    def throttled_cost(self) -> float:
        """Cost of the requests of throttled flows."""
        aside = (queue for lane in self.lanes.values() for queue in lane.aside.values())
        return sum([queue.cost for queue in aside if queue.throttled])

    def ahead(self, flow: str, lane: LaneKey | None) -> float:
        """Service that this band gives before a new request of that flow, tokens.

        Requests of other flows that are set aside are left out.
        """
        if not self.depth:
            return 0.0
        fairness, aside = self.fairness, self.aside()
        mine = fairness.active.get(flow)
        if mine is not None:
            turn, ahead = mine.counter + mine.backlog / mine.weight, mine.backlog
        else:
            least, top = self._front(None if lane is None else self.lanes.get(lane))
            turn, ahead = fairness.start(flow, least, top), 0.0
        others = fairness.active if len(fairness.active) <= MANY + 1 else fairness.several
        cost, weight, one_each = self.cost - ahead, fairness.weight, fairness.one_each  # of flows not yet added
        if mine is not None:
            weight, one_each = weight - mine.weight, one_each - mine.largest
        cost -= sum([set_aside for name, set_aside in aside.items() if name != flow])
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
            least = min((rank[0] for rank in self._ranks()), default=turn)
            ahead += min(cost, max(0.0, turn - least) * weight + one_each + ROUNDING)
        return ahead

    def in_order(self) -> list[RequestRecord]:
        """All its requests as they will go if nobody else comes: by the counters of their flows at their turns."""
        turns: list[tuple[bool, float, int, RequestRecord]] = []
        aside = self.aside()
        ahead = {name: flow.counter for name, flow in self.fairness.active.items()}
        waiting = [request for lane in self.lanes.values() for request in lane]
        waiting.sort(key=attrgetter("order"))
        for request in waiting:
            name = request.arrival.flow
            counter = ahead[name]
            turns.append((name in aside, counter, request.order, request))
            ahead[name] = counter + request.cost / self.fairness.active[name].weight
        turns.sort(key=itemgetter(0, 1, 2))
        return [turn[3] for turn in turns]

    def last(self, flow: str) -> RequestRecord | None:
        """The last request of a flow that has no promise; None if it has none here."""
        of_lanes = [found for lane in self.lanes.values() if (found := lane.last(flow)) is not None]
        return max(of_lanes, key=lambda request: request.order, default=None)

    def ends(self, flow: str) -> tuple[float, RequestRecord]:
        """When the oldest request of a flow that waits here arrived, and the last one by turn."""
        found = [ends for lane in self.lanes.values() if (ends := lane.ends(flow)) is not None]
        oldest = min([ends[0] for ends in found])
        return oldest, max([ends[1] for ends in found], key=lambda request: request.order)

    def crowding(self, bounds: QueueBounds) -> Flow:
        """The flow that fills the most of the queue. The band must not be empty."""
        return max(self.fairness.active.values(), key=bounds.filled_by)

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
        rank = None if lane is None else lane.rank()
        least = None if rank is None else rank[0]
        if least is not None and len(self.lanes) == 1:
            return least, least
        return least, max((rank[0] for rank in self._ranks()), default=None)

    def _ranks(self) -> Iterator[tuple[float, int]]:
        """Ranks of the heads of all lanes."""
        return (rank for lane in self.lanes.values() if (rank := lane.rank()) is not None)

    def _served(self, flow: Flow, within: float) -> float:
        """Service given to a flow while its counter advances by `within`: all requests that begin by then."""
        if within < flow.largest and len(self.lanes) == 1:
            (lane,) = self.lanes.values()
            served = 0.0
            for request in islice(lane.of_flow(flow.name), STEPS):
                served += request.cost
                if served > within:
                    return served
        return min(flow.backlog, within + flow.largest)
