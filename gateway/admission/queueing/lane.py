"""A lane: requests of one band that compete for the same endpoints, in the order of fairness."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, takewhile
from math import inf

from gateway.admission.placing.request import RequestRecord
from gateway.admission.queueing.fairness import Flow

SLACK = 64
"""Most stale entries of a heap, beyond the number of live ones, before it is swept."""


class Line:
    """Requests of one flow in one lane: first in, first out. A request that comes back has its earlier turn."""

    __slots__ = ("_asked", "_front", "cost", "entry", "flow", "front_cost", "waiting")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.waiting: OrderedDict[int, RequestRecord] = OrderedDict()
        """By turn."""
        self.cost = 0.0
        """Of all its requests."""
        self.entry = 0
        """Number of its valid entry in the lane's heap; that entry is never behind the line's place."""
        self._front: list[RequestRecord] = []
        """Cached first requests; `front_cost` is the cost of all but the last of these."""
        self._asked = 0
        self.front_cost = 0.0

    def front(self, count: int) -> list[RequestRecord]:
        """The first `count` requests."""
        if not self._front or self._asked != count:
            self._front, self._asked = list(islice(self.waiting.values(), count)), count
            self.front_cost = float(sum([request.cost for request in self._front[:-1]]))
        return self._front

    def push(self, request: RequestRecord) -> bool:
        """Add a request; True if it is now the first."""
        waiting, order = self.waiting, request.order
        self.cost += request.cost
        if not waiting or next(reversed(waiting)) < order:
            if len(self._front) == len(waiting):  # the cache holds the whole line, so it is out of date
                self._front = []
            waiting[order] = request
            return len(waiting) == 1
        self._front = []
        earlier = list(takewhile(lambda other: other < order, waiting))
        waiting[order] = request
        for other in (order, *reversed(earlier)):
            waiting.move_to_end(other, last=False)
        return not earlier

    def remove(self, request: RequestRecord) -> None:
        """It no longer waits."""
        if self._front and request.order <= self._front[-1].order:
            self._front = []
        del self.waiting[request.order]
        self.cost -= request.cost


Entry = tuple[float, int, int, Line]
"""Place of a line: its flow's counter, the turn of its first request, the number of the entry, the line."""


class Lane:
    """Requests of one band that compete for the same endpoints, in the order of fairness.

    A heap of lines. A charge moves a line back, and is applied when its entry comes to the front. A refund or an
    earlier turn moves a line forward: it gets a new entry, and the old one is stale. A line that is set aside has no
    entry, so the lane is as if its requests did not wait.
    """

    __slots__ = ("_entries", "_heap", "_lines", "aside", "blocked", "reach")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._entries = 0
        self._lines: dict[str, Line] = {}
        self.aside: dict[str, Line] = {}
        """Lines that were set aside since the last offer began, by flow."""
        self.blocked: RequestRecord | None = None
        """The head at the last offer, if it was refused and others may be backfilled."""
        self.reach = inf
        """End of the backfill window: the counter of its last request."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[RequestRecord]:
        return (request for line in self._lines.values() for request in line.waiting.values())

    def push(self, request: RequestRecord, flow: Flow) -> None:
        """Add a request to the line of its flow."""
        line = self._lines.get(flow.name)
        if line is None:
            line = self._lines[flow.name] = Line(flow)
        if line.push(request):
            self.aside.pop(flow.name, None)  # another head of this line may go
            self._enter(line)

    def remove(self, request: RequestRecord) -> None:
        """It no longer waits."""
        name = request.arrival.flow
        line = self._lines[name]
        line.remove(request)
        if not line.waiting:
            line.entry = 0
            del self._lines[name]
            self.aside.pop(name, None)

    def refunded(self, flow: Flow) -> None:
        """Move the line of a flow forward after a refund."""
        line = self._lines.get(flow.name)
        if line is not None and flow.name not in self.aside:
            self._enter(line)

    def set_aside(self, flow: str) -> None:
        """Leave out the line of a flow until `restore`."""
        line = self.aside[flow] = self._lines[flow]
        line.entry = 0

    def passed(self, counter: float) -> None:
        """Have the flows that are set aside lose a turn that began at this counter."""
        for line in self.aside.values():
            line.flow.counter = max(line.flow.counter, counter)

    def restore(self) -> None:
        """Begin an offer: no line is set aside, and no head was refused."""
        self.blocked = None
        for line in self.aside.values():
            self._enter(line)
        self.aside.clear()

    def last(self, flow: str) -> RequestRecord | None:
        """The last request of a flow in this lane that has no promise; None if it has none."""
        line = self._lines.get(flow)
        if line is None:
            return None
        return next((request for request in reversed(line.waiting.values()) if request.promise is None), None)

    def line(self, flow: str) -> Iterator[RequestRecord]:
        """Requests of a flow in this lane, in order."""
        line = self._lines.get(flow)
        return iter(()) if line is None else iter(line.waiting.values())

    def head(self) -> RequestRecord | None:
        """The request that goes first; None if every line is set aside.

        Afterwards the heap's first entry, if there is one, is the valid entry of its line.
        """
        heap = self._heap
        while heap:
            entered, order, number, line = heap[0]
            if line.entry != number:
                heappop(heap)
                continue
            head = next(iter(line.waiting.values()))
            counter = line.flow.counter
            if entered == counter and order == head.order:
                return head
            heapreplace(heap, self._entry(line, head))
        return None

    def place(self) -> tuple[float, int] | None:
        """Place of its head among those of other lanes: the counter of its flow, then its turn; None without a head."""
        if self.head() is None:
            return None
        counter, order, _, _ = self._heap[0]
        return counter, order

    def behind(self, count: int) -> list[RequestRecord]:
        """The next `count` requests after the head, in the order in which they would go if each was taken.

        Sets `reach`. The lane must have a head.
        """
        self.reach = inf
        self.head()
        lines = len(self._lines) - len(self.aside)
        if lines == 1:
            return self._behind_in_line(self._heap[0][3], count)
        taken: list[Entry] = []
        again: list[tuple[float, int, RequestRecord, Iterator[RequestRecord], Flow]] = []
        found: list[RequestRecord] = []
        while len(found) <= count and (again or len(taken) < lines):
            fresh: Entry | None = None
            if len(taken) < lines:
                self.head()
                if not again or self._heap[0][:2] <= again[0][:2]:
                    fresh = self._heap[0]
            if fresh is None:
                counter, _, request, line, flow = heappop(again)
            else:
                taken.append(heappop(self._heap))
                counter, flow, line = fresh[0], fresh[3].flow, iter(fresh[3].waiting.values())
                request = next(line)
            found.append(request)
            following = next(line, None)
            if following is not None:
                heappush(again, (counter + request.cost / flow.weight, following.order, following, line, flow))
            if len(found) > count:
                self.reach = counter
        for entry in taken:
            heappush(self._heap, entry)
        return found[1:]

    def _behind_in_line(self, line: Line, count: int) -> list[RequestRecord]:
        found = line.front(count + 1)
        self.reach = line.flow.counter + line.front_cost / line.flow.weight if len(found) > count else inf
        return found[1:]

    def _enter(self, line: Line) -> None:
        heappush(self._heap, self._entry(line, next(iter(line.waiting.values()))))
        if len(self._heap) > SLACK + 2 * len(self._lines):
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapify(self._heap)

    def _entry(self, line: Line, head: RequestRecord) -> Entry:
        """A new entry of a line; older ones become stale."""
        self._entries += 1
        line.entry = self._entries
        return line.flow.counter, head.order, self._entries, line
