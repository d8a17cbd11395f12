"""The queue of one pool: bands, lanes and flows, in the order of service."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from heapq import heapify, heappop, heappush, nlargest
from math import inf
from typing import Final

from gateway.admission.placing.request import Charge, LaneKey, RequestRecord
from gateway.admission.policy import Band
from gateway.admission.queueing.band_queue import BandQueue, QueueBounds
from gateway.admission.queueing.flow_fairness import Flow
from gateway.admission.queueing.lane import SLACK, Lane
from gateway.admission.tuning import TUNING

MAX_IDLE_BANDS = 64
"""Most idle bands whose flows are remembered: those that became idle last."""
MOST_AGAIN = 64
"""Most flows set aside in earlier offers that a lane asks again in one."""
MAX_ASIDE = 2 * MOST_AGAIN
"""Most flows that a lane sets aside in one offer. One more cuts it short, and the next offer goes on from there."""
DEFAULTS = Band()


Entry = tuple[float, int, RequestRecord]
"""An entry of a heap: a time, the request's ticket at that entry, and the request. Stale once its ticket is another."""


class OfferResult(Enum):
    """What the controller did with a request that was offered."""

    TAKEN = auto()
    """It was dispatched: removed and charged."""
    NO_ROOM = auto()
    """It does not fit now. Smaller requests of its band and lane may be backfilled, to the endpoints it waits for."""
    NOT_ITS_FLOW = auto()
    """Its flow is throttled. Its flow's requests in the lane are set aside until it is asked again in a later offer."""
    OTHERS_FIRST = auto()
    """The same, as it leaves room for others. It still goes before less urgent bands."""
    CLOSED = auto()
    """No request could go there now: its lane ends."""


_TAKEN: Final = OfferResult.TAKEN  # constants: in Python 3.11 each access to an enum member is a function call
_NO_ROOM: Final = OfferResult.NO_ROOM
_NOT_ITS_FLOW: Final = OfferResult.NOT_ITS_FLOW
_OTHERS_FIRST: Final = OfferResult.OTHERS_FIRST
_CLOSED: Final = OfferResult.CLOSED


class Ahead:
    """Service ahead of a new request, in tokens, if no other request arrives."""

    __slots__ = ("reserved", "same", "urgent", "yielded")

    def __init__(self, urgent: float, same: float, reserved: float, yielded: float) -> None:
        self.urgent = urgent
        """Cost of all requests in more urgent bands, except those of throttled flows."""
        self.same = same
        """In its own band: its flow's backlog, and the fair share of every other flow until then."""
        self.reserved = reserved
        """Share of all service that its band gets, however much urgent work waits."""
        self.yielded = yielded
        """The share of all service that less urgent bands get meanwhile, at most."""

    def service(self, cost: float) -> float:
        """Total service until the turn of a new request with this cost, tokens."""
        in_order = (self.urgent + self.same) / max(1.0 - self.yielded, self.reserved)
        return min(in_order, (self.same + cost) / self.reserved)


class Queue:
    """Priority bands, the most urgent first except for reserved shares. In each band, flows share fairly.

    A band sorts its requests into lanes by the endpoints they fit. Order holds within a lane: a head that only a large
    endpoint can serve does not keep others from a small one. A few smaller requests may be backfilled before a head
    that does not fit. A flow is first in, first out, and a request that comes back has its earlier turn.

    A throttled flow's requests in a lane are set aside until a later offer. Other flows have their turns, start, and
    are told what is ahead of them as if these requests did not wait. The throttled flow loses the turns that pass
    meanwhile. If it kept them, its counter would fall behind without bound. When the throttle ends it would go before
    everyone, and so would every new flow, which starts at the lowest counter.

    `cost` and `size` of a request must not change while it waits.
    """

    def __init__(self, *, bands: Mapping[int, Band], weights: Mapping[str, float], max_passes: int) -> None:
        self._settings = bands
        self._weights = weights
        self._max_passes = max_passes
        self._bands: dict[int, BandQueue] = {}
        self._order: list[BandQueue] = []
        """Bands with a waiting request, the most urgent first."""
        self._idle: OrderedDict[int, BandQueue] = OrderedDict()
        self._deadlines: list[Entry] = []
        self._arrivals: list[Entry] = []
        self._tickets = 0
        self._served = 0.0
        """Service of all requests, as far as it was counted, tokens."""
        self._largest = 0.0
        """Upper bound of the cost of all waiting requests."""
        self.depth = 0
        self.bytes = 0
        """Bytes of all waiting bodies."""
        self.prompt_tokens = 0
        """Prompt tokens of all that waits."""
        self.sequences = 0
        """Of all that waits."""

    def govern(self, *, bands: Mapping[int, Band], weights: Mapping[str, float], max_passes: int) -> None:
        """Apply other settings. Waiting requests keep their places."""
        self._settings, self._weights, self._max_passes = bands, weights, max_passes
        for band in self._bands.values():
            band.govern(bands.get(band.number, DEFAULTS).reserved, weights)

    @property
    def bands(self) -> tuple[int, ...]:
        """Numbers of the bands with a waiting request, the most urgent first."""
        return tuple(band.number for band in self._order)

    @property
    def cost(self) -> float:
        """Cost of all waiting requests, tokens of service."""
        return sum(band.cost for band in self._order)

    @property
    def flows(self) -> int:
        """Number of flows that wait, counted once per band."""
        return sum(len(band.fairness.active) for band in self._order)

    @property
    def longest(self) -> int:
        """The largest `longest_prompt` that a waiting request needs of an endpoint, tokens; 0 if none waits."""
        return max((least for band in self._order for least, *_ in band.lanes), default=0)

    def waiting(self, flow: str) -> int:
        """Number of a flow's waiting requests, in all bands."""
        flows = [band.fairness.active.get(flow) for band in self._order]
        return sum(known.waiting for known in flows if known is not None)

    def most_waiting(self, most: int) -> list[tuple[BandQueue, Flow]]:
        """At most so many flows, in their bands: those with the most waiting requests."""
        flows = ((band, flow) for band in self._order for flow in band.fairness.active.values())
        return nlargest(most, flows, key=lambda found: found[1].waiting)

    def depth_of(self, band: int) -> int:
        """Number of waiting requests in a band."""
        return self._bands[band].depth if band in self._bands else 0

    def ahead(self, band: int, flow: str, lane: LaneKey | None = None, own: float = 0.0) -> Ahead:
        """Service ahead of a new request of this flow and band: never too little while no other request arrives.

        It is exact if few flows wait, and an upper bound with many flows or long backlogs. Other flows' requests that
        are set aside are left out, although they may go sooner once they are throttled no more. Without a lane, an idle
        flow counts as starting after the others. `own` is the cost of the request itself if it waits already.
        """
        waiting = self._bands.get(band)
        same = 0.0 if waiting is None else waiting.ahead(flow, lane)
        return self._beside(band, max(0.0, same - own) if own else same)

    def beside(self) -> list[tuple[BandQueue, Ahead]]:
        """Bands with a waiting request, the most urgent first, and the service ahead of each by the other bands."""
        return [(band, self._beside(band.number, 0.0)) for band in self._order]

    def _beside(self, band: int, same: float) -> Ahead:
        """Service ahead of a request with so much of it in its own band."""
        urgent = yielded = 0.0
        for other in self._order:
            if other.number == band:
                continue
            if other.number < band:
                urgent += other.cost - other.throttled_cost()
            elif other.cost > sum(other.aside().values()):
                yielded += other.share.share
        reserved = max(self._settings.get(band, DEFAULTS).reserved, TUNING.starved_share)
        return Ahead(urgent, same, reserved, yielded)

    def weight(self, band: int) -> float:
        """Weight of all flows that wait in a band."""
        waiting = self._bands.get(band)
        return 0.0 if waiting is None else waiting.fairness.weight

    def backlog(self, band: int, flow: str) -> float:
        """Cost of a flow's waiting requests in a band, tokens of service."""
        waiting = self._bands.get(band)
        known = None if waiting is None else waiting.fairness.active.get(flow)
        return 0.0 if known is None else known.backlog

    def displaced_by(self, request: RequestRecord, bounds: QueueBounds) -> RequestRecord | None:
        """The request that gives up its place in a full queue for another; never one with a promise.

        If a less urgent band has requests, it is in the least urgent one: the last of the flow that fills most of it.
        Otherwise it is in the new request's band, if another flow would still fill more of it than the request's own.
        A request that comes back for an earlier turn takes the place of a later one of its flow, too.
        """
        for band in reversed(self._order):
            if band.number < request.arrival.band:
                break
            if band.number == request.arrival.band:
                return self._last_of_its_band(band, request, bounds)
            if (found := band.last(band.crowding(bounds).name)) is not None:
                return found
        return None

    def _last_of_its_band(self, band: BandQueue, request: RequestRecord, bounds: QueueBounds) -> RequestRecord | None:
        arrival, promise = request.arrival, request.promise
        crowding = band.crowding(bounds)
        if promise is not None and promise.used:
            for name in (arrival.flow, crowding.name):
                found = band.last(name)
                if found is not None and found.order > request.order:
                    return found
            return None
        own = band.fairness.active.get(arrival.flow)
        if own is None:
            own = Flow(arrival.flow, self._weights.get(arrival.flow, 1.0), 0.0)
        joins = not request.ticket
        would_fill = bounds.filled_by(own, joins, joins * arrival.body_bytes)
        return band.last(crowding.name) if bounds.filled_by(crowding) > would_fill else None

    def push(self, request: RequestRecord, lane: LaneKey) -> None:
        """Enter a request into a lane of its band."""
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
        self.prompt_tokens += request.size
        self.sequences += request.sequences
        heappush(self._deadlines, (request.deadline, request.ticket, request))
        heappush(self._arrivals, (request.arrived_at, request.ticket, request))
        if max(len(self._deadlines), len(self._arrivals)) > SLACK + 2 * self.depth:
            for heap in (self._deadlines, self._arrivals):
                heap[:] = [entry for entry in heap if entry[2].ticket == entry[1]]
                heapify(heap)

    def remove(self, request: RequestRecord) -> None:
        """Take out a request that goes, is refused or was cancelled, at any place."""
        band = self._bands[request.arrival.band]
        band.remove(request)
        request.ticket = 0
        self.depth -= 1
        self.bytes -= request.arrival.body_bytes
        self.prompt_tokens -= request.size
        self.sequences -= request.sequences
        if not band.depth:
            self._order.remove(band)
            self._rest(band)
            if not self.depth:
                self._largest = 0.0

    def bypass(self, request: RequestRecord) -> None:
        """Note a request that goes past the empty queue, as if it had entered and left it."""
        self._tickets += 1
        request.order = request.order or self._tickets
        number = request.arrival.band
        if number not in self._bands:
            self._rest(self._new_band(number))
        else:
            self._idle.move_to_end(number)
        self._bands[number].share.begin(self._served)

    def charge(self, request: RequestRecord) -> Charge:
        """Charge the flow and the band of a dispatched request, before or after its removal."""
        band = self._bands.get(request.arrival.band)
        if band is None:
            return Charge(0.0)
        band.fairness.charge(request.arrival.flow, request.cost)
        return Charge(band.share.given(request.cost, self._served))

    def accrue(self, request: RequestRecord, charge: Charge, so_far: float, most: float) -> None:
        """Count the service that a request has had so far, tokens: its band pays what is beyond its cost.

        `most`: service of the pool for which its band waits for that at most.
        """
        more = so_far - max(request.cost, charge.counted)
        if so_far > charge.counted:
            self._served += so_far - charge.counted
            charge.counted = so_far
        band = self._bands.get(request.arrival.band)
        if band is not None and more > 0.0:
            charge.waits += band.share.took(more * charge.owed, self._served, most)

    def settle(self, request: RequestRecord, charge: Charge, used: float, most: float) -> None:
        """Charge the flow and the band for service used beyond what they were charged, tokens, or refund them."""
        self.accrue(request, charge, used, most)
        band = self._bands.get(request.arrival.band)
        if band is not None:
            band.settle(request.arrival.flow, used - request.cost)
            if used < max(request.cost, charge.counted):
                band.share.refund((used - request.cost) * charge.owed, charge.waits)
        if charge.counted > used:
            self._served -= charge.counted - used
            for each in self._bands.values():  # of its own, the part that it was owed is refunded
                part = 1.0 - charge.owed if each is band else 1.0
                each.share.fell(part * (charge.counted - used), self._served)

    @property
    def several(self) -> bool:
        """Whether requests of several bands came of late."""
        return len(self._bands) > 1

    def debts(self) -> Iterator[tuple[int, str, float]]:
        """How far flows are ahead in their bands, see `Fairness.debts`."""
        return ((band.number, flow, debt) for band in self._bands.values() for flow, debt in band.fairness.debts())

    def recall(self, number: int, flow: str, debt: float) -> None:
        """Restore how far a flow is ahead in its band."""
        band = self._bands.get(number)
        if band is None:
            band = self._bands[number] = self._idle[number] = self._new_band(number)
        band.fairness.recall(flow, debt)

    def offer(self, accept: Callable[[RequestRecord], OfferResult]) -> None:
        """Offer waiting requests to `accept`, in order, until every lane has ended.

        For a request that it takes, `accept` must have called `remove` and `charge` when it returns.
        """
        for band in self._order:
            for lane in band.lanes.values():
                lane.restore(MOST_AGAIN)
        ended: set[Lane] = set()
        while self._offer(accept, ended):
            pass

    def may_go(self, request: RequestRecord) -> bool:
        """Whether a new request could go at all: it is the head of its lane, or may be backfilled.

        One beyond the backfill window could not.
        """
        return self._bands[request.arrival.band].lanes[request.lane].head() is request or self.may_backfill(request)

    def may_backfill(self, request: RequestRecord) -> bool:
        """Whether a request that waits, or would wait, may be backfilled before the head of its lane."""
        band = self._bands.get(request.arrival.band)
        lane = None if band is None else band.lanes.get(request.lane)
        if band is None or lane is None:
            return False
        head = lane.head()
        if head is None or lane.blocked is not head or request.arrival.flow in lane.aside:
            return False
        return self._may_backfill(request, head) and band.turn(request, lane) <= lane.window_end

    def first_deadline(self) -> RequestRecord | None:
        """The request with the earliest deadline; None if none waits."""
        return _first(self._deadlines)

    def first_arrival(self) -> RequestRecord | None:
        """The request that arrived first of those that wait; None if none does."""
        return _first(self._arrivals)

    @property
    def no_deadline_before(self) -> float:
        """No deadline is before this time."""
        return self._deadlines[0][0] if self._deadlines else inf

    def reschedule(self) -> None:
        """Rebuild the deadline heap."""
        self._deadlines = [(request.deadline, request.ticket, request) for request in self]
        heapify(self._deadlines)

    def relane(self, lane_of: Callable[[RequestRecord], LaneKey]) -> None:
        """Sort all requests into lanes again, after the endpoints changed."""
        for band in self._order:
            band.relane(lane_of)

    def __iter__(self) -> Iterator[RequestRecord]:
        """All waiting requests: by band, then by lane, then by flow."""
        return (request for band in self._order for lane in band.lanes.values() for request in lane)

    @property
    def tickets(self) -> int:
        """The highest ticket so far, and so the highest `order`."""
        return self._tickets

    def _new_band(self, number: int) -> BandQueue:
        return BandQueue(number, self._settings.get(number, DEFAULTS).reserved, self._weights)

    def _rest(self, band: BandQueue) -> None:
        """Remember a band in which nobody waits."""
        self._bands[band.number] = self._idle[band.number] = band
        if len(self._idle) > MAX_IDLE_BANDS:
            del self._bands[self._idle.popitem(last=False)[0]]

    def _begin(self, number: int) -> BandQueue:
        """Activate a band for its first waiting request."""
        band = self._idle.pop(number, None)
        if band is None:
            band = self._bands[number] = self._new_band(number)
        band.share.begin(self._served)
        insort(self._order, band, key=lambda other: other.number)
        return band

    def _offer(self, accept: Callable[[RequestRecord], OfferResult], ended: set[Lane]) -> bool:
        """Offer requests until one is taken and another band may have its turn; False if every lane has ended."""
        for band in self._in_turn(ended):
            while (head := band.head(ended)) is not None:
                lane = band.lanes[head.lane]
                turn = band.fairness.active[head.arrival.flow].counter
                answer = accept(head)
                if answer is _TAKEN:
                    lane.passed(turn)
                    if len(self._order) > 1:
                        return True
                    continue
                not_its_flow = answer is _NOT_ITS_FLOW or answer is _OTHERS_FIRST
                if not_its_flow and lane.asked < MAX_ASIDE:
                    lane.set_aside(head.arrival.flow, throttled=answer is _NOT_ITS_FLOW)
                    continue
                ended.add(lane)
                lane.cut_short = not_its_flow
                if answer is _NO_ROOM:
                    lane.blocked = head
                    self._backfill(lane, head, accept)
        return False

    def _backfill(self, lane: Lane, head: RequestRecord, accept: Callable[[RequestRecord], OfferResult]) -> None:
        """Offer a few smaller requests for backfill before the head, the smallest first.

        The smallest fit soonest, and more of them are served from the same part of the cache.
        """
        if head.backfilled >= self._max_passes:
            return
        behind = lane.after_head(TUNING.backfill_window)
        backfills = [other for other in behind if self._may_backfill(other, head)]
        backfills.sort(key=_smallest)
        tries = 0
        throttled: set[str] = set()
        for request in backfills:
            if request.arrival.flow in throttled:
                continue
            answer = accept(request)
            if answer is _NOT_ITS_FLOW or answer is _OTHERS_FIRST:
                throttled.add(request.arrival.flow)
                continue
            tries += 1
            if answer is _CLOSED:
                return
            if answer is _TAKEN:
                head.backfilled += 1
                if head.backfilled >= self._max_passes:
                    return
            if tries == TUNING.backfill_tries:
                return

    def _may_backfill(self, request: RequestRecord, head: RequestRecord) -> bool:
        return _smallest(request) < _smallest(head) and head.backfilled < self._max_passes

    def _in_turn(self, ended: set[Lane]) -> list[BandQueue]:
        """Bands in the order of their turns: first those owed the cost of their head, then the most urgent."""
        if len(self._order) == 1:  # the usual case
            return [self._order[0]]
        due: list[BandQueue] = []
        later: list[BandQueue] = []
        for band in self._order:
            head = band.head(ended)
            if head is None:
                continue
            owed = band.share.due(head.cost, self._served, self._largest) <= self._served
            (due if owed else later).append(band)
        due.sort(key=lambda band: band.share.since)
        return due + later


def _smallest(request: RequestRecord) -> tuple[int, int]:
    """Its size, for backfill: of several sequences each may grow as large as another request."""
    return request.sequences, request.size


def _first(heap: list[Entry]) -> RequestRecord | None:
    """The request with the earliest time; None if none waits."""
    while heap:
        _, ticket, request = heap[0]
        if request.ticket == ticket:
            return request
        heappop(heap)
    return None
