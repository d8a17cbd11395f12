"""A lane: requests of one band that compete for the same endpoints, in the order of fairness."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, takewhile
from math import inf

from gateway.admission.placing.request import RequestRecord
from gateway.admission.queueing.flow_fairness import Flow

SLACK = 64
"""Most stale entries of a heap, beyond the number of live ones, before it is swept."""


class FlowQueue:
    """The requests of one flow in one lane: first in, first out. A request that comes back has its earlier turn."""

    __slots__ = ("_asked", "_front", "cost", "entry", "flow", "front_cost", "throttled", "waiting")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.waiting: OrderedDict[int, RequestRecord] = OrderedDict()
        """By turn."""
        self.cost = 0.0
        """Of all its requests."""
        self.entry = 0
        """Number of its valid entry in the lane's heap; that entry is never behind its rank."""
        self.throttled = False
        """Whether it was set aside as its flow is throttled, not for others of its band."""
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
            if len(self._front) == len(waiting):  # the cache holds the whole queue, so it is out of date
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


Entry = tuple[float, int, int, FlowQueue]
"""Rank of a flow's queue: the flow's counter, the turn of its first request, the number of the entry, the queue."""


class Lane:
    """Requests of one band that compete for the same endpoints, in the order of fairness.

    A heap of queues, one of each flow. A charge moves a queue back, and is applied when its entry comes to the front. A
    refund or an earlier turn moves a queue forward: it gets a new entry, and the old one is stale. A queue that is set
    aside has no entry, so the lane is as if its requests did not wait.
    """

    __slots__ = ("_entries", "_heap", "_queues", "aside", "asked", "blocked", "cut_short", "window_end")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._entries = 0
        self._queues: dict[str, FlowQueue] = {}
        self.aside: dict[str, FlowQueue] = {}
        """Queues that are set aside, by flow, in the order in which they were."""
        self.asked = 0
        """Of them, those set aside in this offer."""
        self.cut_short = False
        """Whether the last offer ended as so many were set aside."""
        self.blocked: RequestRecord | None = None
        """The head at the last offer, if it was declined and others may be backfilled."""
        self.window_end = inf
        """End of the backfill window: the counter of its last request."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[RequestRecord]:
        return (request for queue in self._queues.values() for request in queue.waiting.values())

    def push(self, request: RequestRecord, flow: Flow) -> None:
        """Add a request to the queue of its flow."""
        queue = self._queues.get(flow.name)
        if queue is None:
            queue = self._queues[flow.name] = FlowQueue(flow)
        if queue.push(request):
            self.aside.pop(flow.name, None)  # another head of this queue may go
            self._enter(queue)

    def remove(self, request: RequestRecord) -> None:
        """It no longer waits."""
        name = request.arrival.flow
        queue = self._queues[name]
        queue.remove(request)
        if not queue.waiting:
            queue.entry = 0
            del self._queues[name]
            self.aside.pop(name, None)

    def refunded(self, flow: Flow) -> None:
        """Move the queue of a flow forward after a refund."""
        queue = self._queues.get(flow.name)
        if queue is not None and flow.name not in self.aside:
            self._enter(queue)

    def set_aside(self, flow: str, *, throttled: bool) -> None:
        """Leave out the queue of a flow until `restore`."""
        queue = self.aside[flow] = self._queues[flow]
        queue.entry = 0
        queue.throttled = throttled
        self.asked += 1

    def passed(self, counter: float) -> None:
        """Have the flows that are set aside lose a turn that began at this counter."""
        for queue in self.aside.values():
            queue.flow.counter = max(queue.flow.counter, counter)

    def restore(self, most: int) -> None:
        """Begin an offer: no head was declined, and what was set aside first is not any more, at most so many flows.

        None after an offer that was cut short: this one goes on, or the first flows would keep all others from being
        asked.
        """
        self.blocked = None
        self.asked = 0
        for flow in () if self.cut_short else list(islice(self.aside, most)):
            self._enter(self.aside.pop(flow))
        self.cut_short = False

    def last(self, flow: str) -> RequestRecord | None:
        """The last request of a flow in this lane that has no promise; None if it has none."""
        queue = self._queues.get(flow)
        if queue is None:
            return None
        return next((request for request in reversed(queue.waiting.values()) if request.promise is None), None)

    def ends(self, flow: str) -> tuple[float, RequestRecord] | None:
        """When the oldest request of a flow in this lane arrived, and the last one by turn; None if it has none.

        One that came back has an earlier turn than some that arrived before it.
        """
        queue = self._queues.get(flow)
        if queue is None:
            return None
        waiting = queue.waiting.values()
        return min([request.arrived_at for request in waiting]), next(reversed(waiting))

    def of_flow(self, flow: str) -> Iterator[RequestRecord]:
        """Requests of a flow in this lane, in order."""
        queue = self._queues.get(flow)
        return iter(()) if queue is None else iter(queue.waiting.values())

    def head(self) -> RequestRecord | None:
        """The request that goes first; None if every queue is set aside.

        Afterwards the heap's first entry, if there is one, is the valid entry of its queue.
        """
        heap = self._heap
        while heap:
            entered, order, number, queue = heap[0]
            if queue.entry != number:
                heappop(heap)
                continue
            head = next(iter(queue.waiting.values()))
            counter = queue.flow.counter
            if entered == counter and order == head.order:
                return head
            heapreplace(heap, self._entry(queue, head))
        return None

    def rank(self) -> tuple[float, int] | None:
        """Rank of its head among those of other lanes: the counter of its flow, then its turn; None without a head."""
        if self.head() is None:
            return None
        counter, order, _, _ = self._heap[0]
        return counter, order

    def after_head(self, count: int) -> list[RequestRecord]:
        """The next `count` requests after the head, in the order in which they would go if each was taken.

        Sets `window_end`. The lane must have a head.
        """
        self.window_end = inf
        self.head()
        queues = len(self._queues) - len(self.aside)
        if queues == 1:
            return self._after_head_of_flow(self._heap[0][3], count)
        taken: list[Entry] = []
        again: list[tuple[float, int, RequestRecord, Iterator[RequestRecord], Flow]] = []
        found: list[RequestRecord] = []
        while len(found) <= count and (again or len(taken) < queues):
            fresh: Entry | None = None
            if len(taken) < queues:
                self.head()
                if not again or self._heap[0][:2] <= again[0][:2]:
                    fresh = self._heap[0]
            if fresh is None:
                counter, _, request, rest, flow = heappop(again)
            else:
                taken.append(heappop(self._heap))
                counter, flow, rest = fresh[0], fresh[3].flow, iter(fresh[3].waiting.values())
                request = next(rest)
            found.append(request)
            following = next(rest, None)
            if following is not None:
                heappush(again, (counter + request.cost / flow.weight, following.order, following, rest, flow))
            if len(found) > count:
                self.window_end = counter
        for entry in taken:
            heappush(self._heap, entry)
        return found[1:]

    def _after_head_of_flow(self, queue: FlowQueue, count: int) -> list[RequestRecord]:
        found = queue.front(count + 1)
        self.window_end = queue.flow.counter + queue.front_cost / queue.flow.weight if len(found) > count else inf
        return found[1:]

    def _enter(self, queue: FlowQueue) -> None:
        heappush(self._heap, self._entry(queue, next(iter(queue.waiting.values()))))
        if len(self._heap) > SLACK + 2 * len(self._queues):
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapify(self._heap)

    def _entry(self, queue: FlowQueue, head: RequestRecord) -> Entry:
        """A new entry of a queue; older ones become stale."""
        self._entries += 1
        queue.entry = self._entries
        return queue.flow.counter, head.order, self._entries, queue
