"""Who waits, in which order."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gateway.admission.band import BandQueue
from gateway.admission.fairness import STARVED_SHARE
from gateway.admission.lane import SLACK, Lane, LaneKey
from gateway.admission.policy import Band
from gateway.admission.request import Request

MAX_IDLE_BANDS = 64
"""Bands without anybody whose flows are remembered, those that were left last."""
LOOK = 8
"""How many behind a head that does not fit are looked at for smaller ones."""
ASK = 4
"""How many of them are asked."""
DEFAULTS = Band()


class Answer(Enum):
    """What the controller says of a request that is offered."""

    TAKEN = auto()
    """It goes: it was removed, and charged."""
    NO_ROOM = auto()
    """It does not fit now. Smaller ones of its band and lane are asked next, and may go to where it waits to go."""
    OVER_SHARE = auto()
    """Its flow has its share of what is in flight: other flows of its band and lane are asked next."""
    CLOSED = auto()
    """Nobody could go there now: its lane ends."""


class Ahead(NamedTuple):
    """What goes before a newcomer, in tokens of service, if nobody else comes."""

    urgent: float
    """All that waits in more urgent bands."""
    same: float
    """Of its own band: its flow's backlog, and of every other flow what fairness gives it until then."""
    reserved: float
    """Share of all service its band gets, however much more urgent work there is."""
    yielded: float
    """Share of all service that less urgent bands get meanwhile, at most."""

    def service(self, cost: float) -> float:
        """Service given to anybody until the turn of a newcomer with such a cost."""
        in_order = (self.urgent + self.same) / max(1.0 - self.yielded, self.reserved)
        return min(in_order, (self.same + cost) / self.reserved)


class Queue:
    """Priority bands, the most urgent first but for what is reserved to others; in each, flows that share fairly.

    Within a band requests also stand in lanes, by where they can go. Order holds among all that compete for an
    endpoint; a head that only a large endpoint can serve does not stop others from using a small one, and a few
    smaller ones may pass it. Within a flow the first in is the first out, and who comes back has the turn it had.

    `cost` and `size` of a request stay as they are while it waits.
    """

    def __init__(self, *, bands: Mapping[int, Band], weights: Mapping[str, float], max_passes: int) -> None:
        self._settings = bands
        self._weights = weights
        self._max_passes = max_passes
        self._bands: dict[int, BandQueue] = {}
        self._order: list[BandQueue] = []
        """Those with somebody in them, the most urgent first."""
        self._idle: OrderedDict[int, BandQueue] = OrderedDict()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._tickets = 0
        self._served = 0.0
        self._largest = 0.0
        """No request that waits costs more."""
        self.depth = 0
        self.bytes = 0
        """Of the bodies that wait."""

    def govern(self, *, bands: Mapping[int, Band], weights: Mapping[str, float], max_passes: int) -> None:
        """Go by other settings from now on; who waits keeps its place."""
        self._settings, self._weights, self._max_passes = bands, weights, max_passes
        for band in self._bands.values():
            band.govern(bands.get(band.number, DEFAULTS).reserved, weights)

    @property
    def bands(self) -> tuple[int, ...]:
        """Bands in which somebody waits, the most urgent first."""
        return tuple(band.number for band in self._order)

    @property
    def cost(self) -> float:
        """Tokens of service that wait."""
        return sum(band.cost for band in self._order)

    @property
    def flows(self) -> int:
        """How many flows wait, each counted in each of its bands."""
        return sum(len(band.fairness.active) for band in self._order)

    def waiting(self, flow: str) -> int:
        """How many of a flow wait, in all bands."""
        flows = [band.fairness.active.get(flow) for band in self._order]
        return sum(known.waiting for known in flows if known is not None)

    def depth_of(self, band: int) -> int:
        """How many wait in a band."""
        return self._bands[band].depth if band in self._bands else 0

    def ahead(self, band: int, flow: str, lane: LaneKey | None = None, own: float = 0.0) -> Ahead:
        """What would go before a newcomer of that flow to that band; never less, while nobody else comes.

        Exact to the request where few flows wait; with many, or with long backlogs, a bound from above. Without the
        lane it would stand in, an idle flow counts as one that starts behind. `own` is the cost of the request in
        question where it waits already.
        """
        waiting = self._bands.get(band)
        same = 0.0 if waiting is None else waiting.ahead(flow, lane)
        urgent = yielded = 0.0
        for other in self._order:
            if other.number < band:
                urgent += other.cost
            elif other.number > band:
                yielded += other.share.share
        return Ahead(
            urgent=urgent,
            same=max(0.0, same - own) if own else same,
            reserved=max(self._settings.get(band, DEFAULTS).reserved, STARVED_SHARE),
            yielded=yielded,
        )

    def weight(self, band: int) -> float:
        """Of all flows that wait in a band."""
        waiting = self._bands.get(band)
        return 0.0 if waiting is None else waiting.fairness.weight

    def backlog(self, band: int, flow: str) -> float:
        """Tokens of service that a flow waits for in a band."""
        waiting = self._bands.get(band)
        known = None if waiting is None else waiting.fairness.active.get(flow)
        return 0.0 if known is None else known.backlog

    def last(self, request: Request) -> Request | None:
        """Who gives up its place for one that has an earlier turn: the last of its flow, else of the longest backlog.

        Nobody who came back for a turn of its own.
        """
        band = self._bands.get(request.arrival.band)
        if band is None or not band.depth:
            return None
        longest = max(band.fairness.active.values(), key=lambda flow: flow.backlog)
        for flow in (request.arrival.flow, longest.name):
            found = band.last(flow)
            if found is not None and found.order > request.order:
                return found
        return None

    def push(self, request: Request, lane: LaneKey) -> None:
        """Let a request wait for its turn."""
        self._tickets += 1
        request.ticket = self._tickets
        request.order = request.order or self._tickets
        request.lane = lane
        band = self._bands.get(request.arrival.band)
        if band is None or not band.depth:
            band = self._begin(request.arrival.band)
        band.push(request)
        self._largest = max(self._largest, request.cost)
        self.depth += 1
        self.bytes += request.arrival.body_bytes
        heappush(self._deadlines, (request.deadline, request.ticket, request))
        if len(self._deadlines) > SLACK + 2 * self.depth:
            self._deadlines = [entry for entry in self._deadlines if entry[2].ticket == entry[1]]
            heapify(self._deadlines)

    def remove(self, request: Request) -> None:
        """Take out a request that goes, is refused or has left, wherever it stands."""
        band = self._bands[request.arrival.band]
        band.remove(request)
        request.ticket = 0
        self.depth -= 1
        self.bytes -= request.arrival.body_bytes
        if not band.depth:
            self._order.remove(band)
            self._idle[band.number] = band
            if len(self._idle) > MAX_IDLE_BANDS:
                del self._bands[self._idle.popitem(last=False)[0]]
            if not self.depth:
                self._largest = 0.0

    def served(self, request: Request) -> None:
        """Charge the flow and the band of a request that goes, before or after it was removed."""
        band = self._bands.get(request.arrival.band)
        cost = request.cost
        self._served += cost
        if band is not None:
            band.fairness.charge(request.arrival.flow, cost)
            band.share.given(cost, self._served)

    def settle(self, flow: str, band: int, delta: float) -> None:
        """Charge a flow what was really used beyond what it was charged, in tokens of service; or give back."""
        known = self._bands.get(band)
        if known is not None:
            known.settle(flow, delta)

    def offer(self, accept: Callable[[Request], Answer]) -> None:
        """Ask `accept` about those who wait, in order, until every lane has ended.

        Of one that it takes, it has called `remove` and `served` when it returns.
        """
        ended: set[Lane] = set()
        while self._offer(accept, ended):
            pass

    def may_go(self, request: Request) -> bool:
        """Whether a newcomer can change anything: it goes first in its lane, or may pass who does.

        One that stands too far behind to be looked at may not.
        """
        return self._bands[request.arrival.band].lanes[request.lane].head() is request or self.may_pass(request)

    def may_pass(self, request: Request) -> bool:
        """Whether one that waits, or would, may pass who goes first in its lane, and stands near enough to it."""
        band = self._bands.get(request.arrival.band)
        lane = None if band is None else band.lanes.get(request.lane)
        if band is None or lane is None:
            return False
        head = lane.head()
        if lane.blocked is not head or not self._may_pass(request, head, yields=lane.yields):
            return False
        return band.turn(request, lane) <= lane.reach

    def first_deadline(self) -> Request | None:
        """Whoever's deadline comes first."""
        heap = self._deadlines
        while heap:
            _, ticket, request = heap[0]
            if request.ticket == ticket:
                return request
            heappop(heap)
        return None

    def reschedule(self) -> None:
        """Deadlines are others than before."""
        self._deadlines = [(request.deadline, request.ticket, request) for request in self]
        heapify(self._deadlines)

    def relane(self, lane_of: Callable[[Request], LaneKey]) -> None:
        """Sort everybody into lanes anew: the endpoints are others than before."""
        for band in self._order:
            band.relane(lane_of)

    def __iter__(self) -> Iterator[Request]:
        """All that wait: by band, then by lane, then by flow."""
        return (request for band in self._order for lane in band.lanes.values() for request in lane)

    def _begin(self, number: int) -> BandQueue:
        """Somebody comes to wait in a band without anybody."""
        band = self._idle.pop(number, None)
        if band is None:
            band = BandQueue(number, self._settings.get(number, DEFAULTS).reserved, self._weights)
            self._bands[number] = band
        band.share.begin(self._served)
        insort(self._order, band, key=lambda other: other.number)
        return band

    def _offer(self, accept: Callable[[Request], Answer], ended: set[Lane]) -> bool:
        """Ask until one is taken and another band may have its turn; False when every lane has ended."""
        for band in self._in_turn(ended):
            while (lane := band.first(ended)) is not None:
                head = lane.head()
                answer = accept(head)
                if answer is Answer.TAKEN:
                    if len(self._order) > 1:
                        return True
                    continue
                ended.add(lane)
                lane.blocked = None if answer is Answer.CLOSED else head
                lane.yields = answer is Answer.OVER_SHARE
                if lane.blocked is not None and (lane.yields or head.passed < self._max_passes):
                    self._let_pass(lane, head, accept)
        return False

    def _let_pass(self, lane: Lane, head: Request, accept: Callable[[Request], Answer]) -> None:
        """Ask a few that may pass the head: those of other flows where it yields, in order; else the smallest.

        These fit the soonest, and of as much of the cache more of them are served.
        """
        passing = [other for other in lane.behind(LOOK) if self._may_pass(other, head, yields=lane.yields)]
        if not lane.yields:
            passing.sort(key=lambda request: request.size)
        for request in passing[:ASK]:
            answer = accept(request)
            if answer is Answer.CLOSED:
                return
            if answer is Answer.TAKEN and not lane.yields:
                head.passed += 1
                if head.passed >= self._max_passes:
                    return

    def _may_pass(self, request: Request, head: Request, *, yields: bool) -> bool:
        if yields:
            return request.arrival.flow != head.arrival.flow
        return request.size < head.size and head.passed < self._max_passes

    def _in_turn(self, ended: set[Lane]) -> list[BandQueue]:
        """The bands: first who is owed the cost of its head; then the most urgent."""
        if len(self._order) == 1:  # nearly always
            return [self._order[0]]
        due: list[BandQueue] = []
        later: list[BandQueue] = []
        for band in self._order:
            lane = band.first(ended)
            if lane is None:
                continue
            owed = band.share.due(lane.head().cost, self._served, self._largest) <= self._served
            (due if owed else later).append(band)
        due.sort(key=lambda band: band.share.since)
        return due + later
