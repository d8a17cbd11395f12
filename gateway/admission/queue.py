"""Who waits, in which order."""

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from gateway.admission.events import EndpointId
from gateway.admission.lifecycle import State
from gateway.admission.request import Request

LaneKey = tuple[int, EndpointId | None]
"""Who can go to the same endpoints: the least `longest_prompt` that serves them, and the endpoint they avoid."""
SLACK = 64
"""Entries of requests that are gone which a heap may hold, beside as many as wait, before it is swept."""


from enum import Enum, auto
from typing import NamedTuple


class Answer(Enum):
    TAKEN = auto()
    NO_ROOM = auto()
    CLOSED = auto()


class Ahead(NamedTuple):
    urgent: float
    same: float
    reserved: float


class Lane:
    """Requests of one band that compete for the same endpoints, in order of their first arrival.

    Who leaves from the middle stays in the heap as an entry that no longer waits.
    """

    __slots__ = ("_heap", "depth")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self.depth = 0

    def push(self, request: Request) -> None:
        """Let it wait."""
        heappush(self._heap, (request.order, request.ticket, request))
        self.depth += 1

    def removed(self) -> None:
        """One of them no longer waits."""
        self.depth -= 1
        if len(self._heap) > SLACK + 2 * self.depth:
            self._heap = [entry for entry in self._heap if _current(entry)]
            heapify(self._heap)

    def head(self) -> Request:
        """The first of them. There is one."""
        while not _current(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2]

    def __iter__(self) -> Iterator[Request]:
        return (entry[2] for entry in self._heap if _current(entry))


class Queue:
    """First in, first out within a priority band; lower bands first.

    Within a band requests stand in lanes, by where they can go. Order holds among all that compete for an
    endpoint; a head that only a large endpoint can serve does not stop those behind it from using a small one. A
    request that comes back takes the place its first arrival gave it, which is in front of all that came later.
    """

    def __init__(self, *, bands={}, weights={}, max_passes=0) -> None:
        self.costs = {}
        self._bands: dict[int, dict[LaneKey, Lane]] = {}
        self._order: list[int] = []
        self._depths: dict[int, int] = {}
        self._ages: list[tuple[float, int, Request]] = []
        self._tickets = 0
        self.depth = 0
        self.bytes = 0
        """Of the bodies that wait."""

    @property
    def bands(self) -> tuple[int, ...]:
        """Bands in which somebody waits, the most urgent first."""
        return tuple(self._order)

    def depth_of(self, band: int) -> int:
        """How many wait in a band."""
        return self._depths.get(band, 0)

    def served(self, request):
        pass

    def settle(self, flow, band, delta):
        pass

    may_go = lambda self, r: self.is_head(r)

    def first_deadline(self):
        return min(self, key=lambda r: r.deadline, default=None) if self.depth else None

    def reschedule(self):
        pass

    def ahead(self, band, flow):
        return Ahead(sum(c for b, c in self.costs.items() if b < band), self.costs.get(band, 0), 0)

    def _ahead(self, band: int) -> int:
        """How many would go before a newcomer to this band."""
        return sum(depth for other, depth in self._depths.items() if other <= band)

    def push(self, request: Request, lane: LaneKey) -> None:
        """Let a request, already in state `WAITING`, wait for its turn."""
        self._tickets += 1
        request.ticket = self._tickets
        request.order = request.order or self._tickets
        self._insert(request, lane)
        heappush(self._ages, (request.arrived_at, request.ticket, request))
        if len(self._ages) > SLACK + 2 * self.depth:
            self._ages = [entry for entry in self._ages if _current(entry)]
            heapify(self._ages)

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands, that leaves the state `WAITING` with this."""
        band = request.arrival.band
        lanes = self._bands[band]
        lane = lanes[request.lane]
        lane.removed()
        self.depth -= 1
        self.bytes -= request.arrival.body_bytes
        self._depths[band] -= 1
        self.costs[band] -= request.cost
        if not lane.depth:
            del lanes[request.lane]
            if not lanes:
                del self._bands[band], self._depths[band]
                self._order.remove(band)

    def offer(self, accept_) -> None:
        accept = lambda r: accept_(r) is Answer.TAKEN
        for band in list(self.bands):
            self._offer(band, accept)

    def _offer(self, band: int, accept: Callable[[Request], bool]) -> None:
        """Ask `accept` about the heads of a band's lanes, in order.

        It removes a request that it accepts, and the next of its lane is asked. One it refuses ends its lane.
        """
        lanes = self._bands.get(band, {})
        if len(lanes) == 1:  # nearly always, and then there is nothing to merge
            ((key, lane),) = lanes.items()
            while key in lanes and accept(lane.head()):
                pass
            return
        heads = sorted((lane.head().order, key) for key, lane in lanes.items())
        while heads:
            _, key = heappop(heads)
            if accept(lanes[key].head()) and key in lanes:
                heappush(heads, (lanes[key].head().order, key))

    def is_head(self, request: Request) -> bool:
        """Whether a request that waits is the first of its lane."""
        return self._bands[request.arrival.band][request.lane].head() is request

    def oldest(self) -> Request | None:
        """Whoever arrived first."""
        ages = self._ages
        while ages and not _current(ages[0]):
            heappop(ages)
        return ages[0][2] if ages else None

    def relane(self, lane_of: Callable[[Request], LaneKey]) -> None:
        """Sort everybody into lanes anew: the endpoints are others than before."""
        waiting = list(self)
        self._bands.clear()
        self._order.clear()
        self._depths.clear()
        self.depth = self.bytes = 0
        for request in waiting:
            self._insert(request, lane_of(request))

    def __iter__(self) -> Iterator[Request]:
        """All that wait: by band, then by lane."""
        for band in self._order:
            for lane in self._bands[band].values():
                yield from lane

    def _insert(self, request: Request, key: LaneKey) -> None:
        band = request.arrival.band
        lanes = self._bands.get(band)
        if lanes is None:
            lanes = self._bands[band] = {}
            self._depths[band] = 0
            insort(self._order, band)
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = Lane()
        request.lane = key
        lane.push(request)
        self.depth += 1
        self.bytes += request.arrival.body_bytes
        self._depths[band] += 1
        self.costs[band] = self.costs.get(band, 0) + request.cost


def _current(entry: tuple[float, int, Request]) -> bool:
    """Whether a heap's entry is of a request that still waits, and of this stay of it."""
    _, ticket, request = entry
    return request.state is State.WAITING and request.ticket == ticket
