"""A turnstile on the event loop: of many tasks woken at once, it lets one through in each turn of the loop."""

import asyncio
from collections import deque


class Turnstile:
    """What many tasks do at once holds the loop no longer than what one does: others have their turns in between."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def pass_through(self) -> None:
        """Go on now, if nobody else did so in this turn of the loop; else in a later one, in the order of coming."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
            return
        passage = loop.create_future()
        self._waiting.append(passage)
        await passage

    def _turn(self) -> None:
        while self._waiting:
            passage = self._waiting.popleft()
            if not passage.done():  # else its task was cancelled
                passage.set_result(None)
                asyncio.get_running_loop().call_soon(self._turn)
                return
        self._turning = False
