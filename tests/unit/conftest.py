"""Time that passes by itself, for what waits and asks no network; and the memory that is held."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator

import pytest


@pytest.fixture
async def hurried() -> AsyncIterator[None]:
    """Where all wait, the loop's time goes on to what is due next: a wait is as long as it says, and takes no time."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    select = loop._selector.select  # type: ignore[attr-defined]

    def hurry(timeout: float | None) -> list[object]:
        nonlocal now
        if not (found := select(timeout and 0)):
            now += timeout or 0
        return found

    with pytest.MonkeyPatch.context() as patch:  # undone before the loop ends: it waits for threads then
        patch.setattr(loop, "time", lambda: now)
        patch.setattr(loop._selector, "select", hurry)  # type: ignore[attr-defined]
        yield


@pytest.fixture
def memory() -> Iterator[Callable[[], int]]:
    """Bytes that were taken since and are held, also by what waits for the garbage collector."""
    gc.disable()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.enable()
