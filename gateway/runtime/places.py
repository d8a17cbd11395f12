"""Places for work that an engine does without admission: so much at a time, shared by flow."""

import asyncio
from collections import Counter, deque


class Places:
    """A cap on concurrency. A place that falls free goes to the waiting flow that holds the fewest.

    Args:
        count: the most requests at a time.
        per_flow: the most of one flow, where not all: others need not wait for those that take long.
    """

    def __init__(self, count: int, per_flow: int | None = None) -> None:
        self._free = count
        self._per_flow = count if per_flow is None else per_flow
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By flow, in order of arrival; the flow that was served last stands last."""

    def full(self) -> bool:
        """Whether a request must wait for a place."""
        return not self._free

    async def acquire(self, flow: str) -> None:
        """Take a place, once it is this flow's turn."""
        if self._free and self._held[flow] < self._per_flow:
            self._free -= 1
            self._held[flow] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(flow, deque())
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(flow, turn)
            else:
                self.release(flow)  # its turn came in the same moment
            raise

    def release(self, flow: str) -> None:
        """Give a place back, or hand it on."""
        self._held[flow] -= 1
        if not self._held[flow]:
            del self._held[flow]
        while self._waiting:
            following = min(self._waiting, key=self._held.__getitem__)
            if self._held[following] >= self._per_flow:
                break
            queue = self._waiting.pop(following)
            turn = queue.popleft()
            if queue:
                self._waiting[following] = queue
            if not turn.cancelled():
                self._held[following] += 1
                turn.set_result(None)
                return
        self._free += 1

    def _forget(self, flow: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(flow)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[flow]
