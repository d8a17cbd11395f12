"""A fair queue: orders the work of many flows so that each gets its share by cost (start-time fair queuing)."""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_FLOWS = 4096
"""Most flows that are remembered: those that pushed last. The queue of a busy gateway may never be empty."""


class FairQueue(Generic[T]):
    """A queue in which a flow's own backlog delays only that flow.

    In virtual time each item starts when its flow's previous item ends; the item with the earliest start leaves first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, T]] = []
        self._ends: OrderedDict[Hashable, float] = OrderedDict()
        self._now = 0.0
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, flow: Hashable, cost: float, item: T) -> None:
        """Add an item of a flow; `cost` in any unit that all flows share."""
        start = max(self._now, self._ends.pop(flow, 0.0))
        self._ends[flow] = start + cost
        if len(self._ends) > MOST_FLOWS:
            self._ends.popitem(last=False)
        self._sequence += 1
        heapq.heappush(self._heap, (start, self._sequence, cost, item))

    def pop(self) -> T:
        """Take the item whose turn it is.

        Raises:
            IndexError: the queue is empty.
        """
        start, _, _, item = heapq.heappop(self._heap)
        self._now = max(self._now, start)
        if not self._heap:
            # Idle: no flow is owed anything, so old flows can be forgotten.
            self._ends.clear()
        return item
