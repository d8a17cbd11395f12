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


class Background:
    """The background work of one part of a process."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run the work until it finishes, or all work is stopped."""
        task = asyncio.create_task(kept_up(name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """End all work."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
