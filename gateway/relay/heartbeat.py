"""Heartbeats for a streaming client that waits, so that no proxy in between closes its silent connection.

Each is an SSE comment, which every client ignores: `: kvgate position=3 eta=2.1`, the position in the queue and the
predicted seconds until its turn; without the latter while that is unknown, and `: kvgate queued` where both are.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from gateway.admission.snapshot import Turn
from gateway.relay.exchange import Exchange

ASKED_WITHIN = 0.5
"""Seconds for the owner of the queue to say where a request stands. Without an answer it is told that it waits."""

AskTurn = Callable[[], Awaitable[Turn | None]]
"""Asks for the turn of the request; raises TimeoutError."""


_SILENT = contextlib.nullcontext()


def heartbeat(exchange: Exchange, interval: float | None, turn: AskTurn) -> AbstractAsyncContextManager[None]:
    """While the block runs, send the client a comment every `interval` seconds; none if `interval` is None.

    The first comment follows the answer's head, so from then on the status is 200.
    """
    return _SILENT if interval is None or not exchange.stream else _beating(exchange, interval, turn)


def comment(turn: Turn | None) -> bytes:
    """The comment that tells a client of its turn."""
    if turn is None or turn.position is None:
        return b": kvgate queued\n\n"
    eta = "" if turn.eta is None else f" eta={turn.eta:.1f}"
    return f": kvgate position={turn.position}{eta}\n\n".encode()


@contextlib.asynccontextmanager
async def _beating(exchange: Exchange, interval: float, turn: AskTurn) -> AsyncIterator[None]:
    beating: asyncio.Task[None] | None = None

    def begin() -> None:
        nonlocal beating
        beating = asyncio.create_task(_beat(exchange, interval, turn))

    timer = asyncio.get_running_loop().call_later(interval, begin)
    try:
        yield
    finally:
        timer.cancel()
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)  # nothing else may be sent before its task has ended


async def _beat(exchange: Exchange, interval: float, turn: AskTurn) -> None:
    if not exchange.response.head_sent:
        await exchange.open()
    while True:
        await exchange.response.write(comment(await stands(turn)))
        await asyncio.sleep(interval)


async def stands(turn: AskTurn) -> Turn | None:
    """Where the request stands, if the owner of the queue says so in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ASKED_WITHIN):
            return await turn()
    return None
