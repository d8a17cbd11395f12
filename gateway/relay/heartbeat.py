"""Heartbeats for a streaming client that waits, so that no proxy in between closes its silent connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from gateway.relay.exchange import Exchange

COMMENT = b": kvgate queued\n\n"
"""A comment: every SSE client ignores it."""


_SILENT = contextlib.nullcontext()


def heartbeat(exchange: Exchange, interval: float | None) -> AbstractAsyncContextManager[None]:
    """While the block runs, send the client a comment every `interval` seconds; none if `interval` is None.

    The first comment follows the answer's head, so from then on the status is 200.
    """
    return _SILENT if interval is None or not exchange.stream else _beating(exchange, interval)


@contextlib.asynccontextmanager
async def _beating(exchange: Exchange, interval: float) -> AsyncIterator[None]:
    beating: asyncio.Task[None] | None = None

    def begin() -> None:
        nonlocal beating
        beating = asyncio.create_task(_beat(exchange, interval))

    timer = asyncio.get_running_loop().call_later(interval, begin)
    try:
        yield
    finally:
        timer.cancel()
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)  # nothing else may be sent before its task has ended


async def _beat(exchange: Exchange, interval: float) -> None:
    if not exchange.response.opened:
        await exchange.open()
    while True:
        await exchange.response.write(COMMENT)
        await asyncio.sleep(interval)
