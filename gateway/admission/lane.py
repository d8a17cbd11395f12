"""Who competes for the same endpoints, and stands there in the order of fairness."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, takewhile
from math import inf

from gateway.admission.events import EndpointId
from gateway.admission.fairness import Flow
from gateway.admission.request import Request

LaneKey = tuple[int, EndpointId | None]
"""Who can go to the same endpoints: the least `longest_prompt` that serves them, and the endpoint they avoid."""
SLACK = 64
"""Entries that are over which a heap may hold, beside as many as are not, before it is swept."""


class Line:
    """What one flow has in one lane: first in, first out. A request that comes back has the turn it had."""

    __slots__ = ("_asked", "_front", "entry", "flow", "front_cost", "waiting")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        """By their turn."""
        self.entry = 0
        """The number of the one that counts of those in the lane's heap; never behind where the line stands."""
        self._front: list[Request] = []
        """The first of them, as long as they are; `front_cost` is that of all but the last of these."""
        self._asked = 0
        self.front_cost = 0.0

    def front(self, count: int) -> list[Request]:
        """The first so many."""
        if not self._front or self._asked != count:
            self._front, self._asked = list(islice(self.waiting.values(), count)), count
            self.front_cost = float(sum([request.cost for request in self._front[:-1]]))
        return self._front

    def push(self, request: Request) -> bool:
        """Let it wait; True when it is now the first."""
        waiting, order = self.waiting, request.order
        if not waiting or next(reversed(waiting)) < order:
            if len(self._front) == len(waiting):  # it is of the first, too
                self._front = []
            waiting[order] = request
            return len(waiting) == 1
        self._front = []
        earlier = list(takewhile(lambda other: other < order, waiting))
        waiting[order] = request
        for other in (order, *reversed(earlier)):
            waiting.move_to_end(other, last=False)
        return not earlier

    def remove(self, request: Request) -> None:
        """It no longer waits."""
        if self._front and request.order <= self._front[-1].order:
            self._front = []
        del self.waiting[request.order]


Entry = tuple[float, int, int, Line]
"""Where a line stands: the flow's counter, then the turn of its first request. The third is the entry's number."""


class Lane:
    """Requests of one band that compete for the same endpoints, in the order of fairness.

    A heap of lines. What a flow was charged since its line was entered only moves it back, and is looked at when the
    line comes to the front; what moves it forward is entered anew, and leaves an entry behind that is over.
    """

    __slots__ = ("_entries", "_heap", "_lines", "blocked", "reach", "yields")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._entries = 0
        self._lines: dict[str, Line] = {}
        self.blocked: Request | None = None
        """The head that was asked last, where it did not fit."""
        self.yields = False
        """Whether that was for the others' sake: its flow has its share."""
        self.reach = inf
        """How far behind it smaller ones were looked for: the counter of the last of them."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Request]:
        return (request for line in self._lines.values() for request in line.waiting.values())

    def push(self, request: Request, flow: Flow) -> None:
        """Let it wait in the line of its flow."""
        line = self._lines.get(flow.name)
        if line is None:
            line = self._lines[flow.name] = Line(flow)
        if line.push(request):
            self._enter(line)

    def remove(self, request: Request) -> None:
        """It no longer waits."""
        name = request.arrival.flow
        line = self._lines[name]
        line.remove(request)
        if not line.waiting:
            line.entry = 0
            del self._lines[name]

    def refunded(self, flow: Flow) -> None:
        """A flow was charged less than nothing: it moves forward."""
        line = self._lines.get(flow.name)
        if line is not None:
            self._enter(line)

    def line(self, flow: str) -> Iterator[Request]:
        """What a flow has here, in order."""
        line = self._lines.get(flow)
        return iter(()) if line is None else iter(line.waiting.values())

    def head(self) -> Request:
        """Who goes first. There is one.

        The heap's first entry is then that of its line, brought up to where that stands.
        """
        heap = self._heap
        while True:
            entered, order, number, line = heap[0]
            if line.entry != number:
                heappop(heap)
                continue
            head = next(iter(line.waiting.values()))
            counter = line.flow.counter
            if entered == counter and order == head.order:
                return head
            heapreplace(heap, self._entry(line, head))

    def place(self) -> tuple[float, int]:
        """Where its head stands among those of other lanes: the counter of its flow, then its turn."""
        self.head()
        counter, order, _, _ = self._heap[0]
        return counter, order

    def behind(self, count: int) -> list[Request]:
        """The next so many after the head, in the order in which they would go if each was taken.

        Leaves in `reach` how far that is.
        """
        if len(self._lines) == 1:
            return self._behind_in_line(count)
        taken: list[Entry] = []
        again: list[tuple[float, int, Request, Iterator[Request], Flow]] = []
        found: list[Request] = []
        self.reach = inf
        while len(found) <= count and (again or len(taken) < len(self._lines)):
            fresh: Entry | None = None
            if len(taken) < len(self._lines):
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

    def _behind_in_line(self, count: int) -> list[Request]:
        (line,) = self._lines.values()
        found = line.front(count + 1)
        self.reach = line.flow.counter + line.front_cost / line.flow.weight if len(found) > count else inf
        return found[1:]

    def _enter(self, line: Line) -> None:
        heappush(self._heap, self._entry(line, next(iter(line.waiting.values()))))
        if len(self._heap) > SLACK + 2 * len(self._lines):
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapify(self._heap)

    def _entry(self, line: Line, head: Request) -> Entry:
        """A new entry of a line, the one that counts from now on."""
        self._entries += 1
        line.entry = self._entries
        return line.flow.counter, head.order, self._entries, line
