"""Background work that nobody waits for: a failure is logged, and the work starts again."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.runtime.descriptors import lacking

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between a failure and the next try. Each failure doubles it; after a good while it is the first again."""

_log = structlog.get_logger("kvgate.background")


async def kept_up(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run the work, and again after each failure, until it finishes."""
    clock = asyncio.get_running_loop().time
    pause = FIRST_PAUSE
    while True:
        began = clock()
        try:
            return await work()
        except Exception as error:  # noqa: BLE001  # whatever it is: nobody else would hear of it
            if clock() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            known = lacking(error)
            _log.error(
                "background work failed and is tried again",
                work=name,
                error=f"{type(error).__name__}: {error}"[:300],
                retry_in=pause,
                exc_info=None if known else error,
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
