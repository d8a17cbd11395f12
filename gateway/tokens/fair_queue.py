"""A fair queue: orders the work of many flows so that each gets its share by cost (start-time fair queuing)."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_FLOWS = 4096
"""Most flows whose ends are remembered: those that were charged last."""


class FairQueue(Generic[T]):
    """A queue in which a flow's own backlog delays only that flow.

    In virtual time each item starts when its flow's previous item ends; the item with the earliest start leaves first.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[tuple[int, float, T]]] = {}
        """By flow: each item's number and cost."""
        self._turns: list[tuple[float, int, Hashable]] = []
        """Heap of the start of each waiting flow's first item; too early if the flow was charged since."""
        self._ends: OrderedDict[Hashable, float] = OrderedDict()
        self._now = 0.0
        self._sequence = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, flow: Hashable, cost: float, item: T) -> None:
        """Add an item of a flow; `cost` in any unit that all flows share."""
        self._size += 1
        self._sequence += 1
        waiting = self._waiting.setdefault(flow, deque())
        waiting.append((self._sequence, cost, item))
        if len(waiting) == 1:
            heapq.heappush(self._turns, (self._start(flow), self._sequence, flow))

    def pop(self) -> T:
        """Take the item whose turn it is.

        Raises:
            IndexError: the queue is empty.
        """
        start, number, flow = heapq.heappop(self._turns)
        while (due := max(start, self._start(flow))) > start:
            start, number, flow = heapq.heappushpop(self._turns, (due, number, flow))
        self._now = max(self._now, start)
        waiting = self._waiting[flow]
        _, cost, item = waiting.popleft()
        self._size -= 1
        self.charge(flow, cost)
        if waiting:
            heapq.heappush(self._turns, (self._start(flow), waiting[0][0], flow))
        else:
            del self._waiting[flow]
        return item

    def charge(self, flow: Hashable, cost: float) -> None:
        """Charge a flow for an item that leaves, or for what one cost more than was said."""
        start = self._start(flow)
        self._ends.pop(flow, None)
        self._ends[flow] = start + cost
        if len(self._ends) > MOST_FLOWS:
            self._ends.popitem(last=False)

    def _start(self, flow: Hashable) -> float:
        return max(self._now, self._ends.get(flow, 0.0))
