"""A turnstile on the event loop: of what is to happen to many at once, a few pass in each turn of the loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

MOST = 8
"""Passages in each turn of the loop."""


class Turnstile:
    """What happens to hundreds of requests at once holds the loop no longer than what happens to a few.

    All others have their turns in between. Passages are in the order of coming.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._passed = 0
        """In this turn."""
        self._turning = False

    def call(self, passage: Callable[[], None]) -> None:
        """Call it now, or in a later turn of the loop."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._waiting or self._passed == MOST:
            self._waiting.append(passage)
        else:
            self._passed += 1
            passage()

    async def pass_through(self) -> None:
        """Go on now, or in a later turn of the loop."""
        passage = asyncio.get_running_loop().create_future()
        self.call(partial(_let_through, passage))
        await passage

    def _turn(self) -> None:
        if not self._passed and not self._waiting:
            self._turning = False
            return
        asyncio.get_running_loop().call_soon(self._turn)
        self._passed = 0
        while self._waiting and self._passed < MOST:
            self._passed += 1
            self._waiting.popleft()()


def _let_through(passage: asyncio.Future[None]) -> None:
    if not passage.done():  # else its task was cancelled
        passage.set_result(None)
