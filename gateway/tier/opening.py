"""The beginning of an owner: no request goes to a core before the fronts have declared what they have."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.admission.events import Arrived, RequestId
from gateway.pools.driver import Driver
from gateway.tier import carried
from gateway.tier.frames import weight


class Opening:
    """What waits until then, and how it goes to the cores.

    Args:
        first: called before anything goes there.

    Attributes:
        begun: set once requests go to the cores as they arrive.
    """

    def __init__(self, first: Callable[[], None]) -> None:
        self.begun = asyncio.Event()
        self._first = first
        self._early: dict[RequestId, tuple[Driver, Arrived]] = {}
        self._turns: deque[RequestId] = deque()
        """Of those, in the order in which they go to the cores."""

    def hold(self, driver: Driver, arrival: Arrived) -> None:
        """Have a request wait."""
        self._early[arrival.request] = driver, arrival

    def drop(self, request: RequestId) -> None:
        """A request waits no more."""
        self._early.pop(request, None)

    def open(self) -> None:
        """Let what waits go to the cores, the longest wait first."""
        if not self.begun.is_set() and not self._turns:
            self._first()
            self._turns.extend(sorted(self._early, key=lambda request: -self._early[request][1].waited))
            self._open_further()

    def _open_further(self) -> None:
        """Let go what one turn of the loop has time for. What arrives meanwhile comes after it."""
        weighs = 0
        while self._turns and weighs < carried.PART:
            early = self._early.pop(self._turns.popleft(), None)
            if early is not None:
                driver, arrival = early
                driver.handle(arrival)
                weighs += weight(arrival)
        if not self._turns:
            self._turns.extend(self._early)
        if self._turns:
            asyncio.get_running_loop().call_soon(self._open_further)
        else:
            self.begun.set()
