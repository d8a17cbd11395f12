"""The waiting room of requests without a queue: their model's pool is not known yet, or they need no admission."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.admission.outcomes import Outcome
from gateway.config.admission import QueueSettings
from gateway.relay.exchange import Exchange, RefusedError
from gateway.runtime.shares import Shares
from gateway.wire.errors import SHUTTING_DOWN

_Ready = TypeVar("_Ready")
_RETRY_AFTER = 5.0
"""Seconds; a guess, as nothing tells how fast the lobby empties."""


class Lobby:
    """Holds, for all models together, at most as many requests and bytes as one model's queue.

    One flow gets at most half of what the others leave, so that none can keep the others out.

    Args:
        queue: the settings in force.
    """

    def __init__(self, queue: Callable[[], QueueSettings]) -> None:
        self._limits: set[asyncio.Timeout] = set()
        """One timeout for each waiting request."""
        self._requests = Shares(lambda: queue().max_requests)
        self._bytes = Shares(lambda: queue().max_bytes)
        self._draining = False

    async def wait(
        self, exchange: Exchange, size: int, ready: Callable[[], Awaitable[_Ready]], timeout: float
    ) -> _Ready:
        """Wait for what `ready` returns, and add the time to the exchange's queue time.

        Args:
            exchange: of the waiting request.
            size: of its body, in bytes.
            ready: starts what to wait for.
            timeout: longest wait, in seconds.

        Raises:
            TimeoutError: it took longer.
            RefusedError: too many wait already, or the gateway is shutting down.
        """
        if self._draining:
            raise shutting_down()
        flow = exchange.flow
        if not (self._requests.takes(flow, 1) and self._bytes.takes(flow, size)):
            raise RefusedError(Outcome.QUEUE_FULL, "Too many requests wait already.", retry_after=_RETRY_AFTER)
        limit = asyncio.timeout(timeout)
        self._limits.add(limit)
        self._requests.add(flow, 1)
        self._bytes.add(flow, size)
        try:
            with exchange.waiting():
                async with limit:
                    return await ready()
        except TimeoutError:
            if self._draining:
                raise shutting_down() from None
            raise
        finally:
            self._limits.discard(limit)
            self._requests.add(flow, -1)
            self._bytes.add(flow, -size)

    def drain(self) -> None:
        """Refuse all waiting and all further requests."""
        self._draining = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)


def shutting_down() -> RefusedError:
    """The refusal of a gateway that ends."""
    return RefusedError(Outcome.DRAINING, SHUTTING_DOWN, retry_after=1.0)
