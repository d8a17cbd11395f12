"""The notes in a request's spans on what holds it back: asked once it waits, and only of one that is recorded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from gateway.relay.exchange import Exchange
from gateway.relay.heartbeat import AskTurn, stands

WAITS = 0.05
"""Seconds after which a request counts as one that waits: with workers or a tier, each waits for its decision."""
LINED_UP = 0.5
"""Seconds after which one that has just come has its position (`POSITIONS_AGE`)."""

_UNSEEN = contextlib.nullcontext()


def noting(exchange: Exchange, turn: AskTurn) -> AbstractAsyncContextManager[None]:
    """While the block waits, note in the request's trace the rule that holds it back, and its position in the queue."""
    return _UNSEEN if exchange.recorded is None else _noting(exchange, turn)


@contextlib.asynccontextmanager
async def _noting(exchange: Exchange, turn: AskTurn) -> AsyncIterator[None]:
    asking = asyncio.create_task(_note(exchange, turn))
    try:
        yield
    finally:
        asking.cancel()


async def _note(exchange: Exchange, turn: AskTurn) -> None:
    for seconds in (WAITS, LINED_UP):
        await asyncio.sleep(seconds)
        stood = await stands(turn)
        if stood is not None:
            exchange.note_rule(stood.rule, stood.position)
            if stood.position is not None:
                return
