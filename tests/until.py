"""What a test does where there is nothing to await: it looks again and again, and fails when that takes too long."""

import asyncio
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds after which what a test waits for will not come. A busy machine takes long; nothing is slower for it."""


async def until(condition: Callable[[], Any], timeout: float = PATIENCE) -> None:
    """Wait until a condition, plain or asynchronous, holds; fail when it does not in time."""
    async with asyncio.timeout(timeout):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.002)
