"""The waiting room of requests without a queue: their model's pool is not known yet, or they need no admission."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.admission.outcomes import Outcome
from gateway.config.settings import QueueSettings
from gateway.relay.exchange import Exchange, RefusedError

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
        self._queue = queue
        self._limits: set[asyncio.Timeout] = set()
        """One timeout for each waiting request."""
        self._bytes = 0
        self._requests_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        """By flow; those with nothing here are left out."""
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
            raise _draining()
        flow = exchange.flow
        if not self._takes(flow, size):
            raise RefusedError(Outcome.QUEUE_FULL, "Too many requests wait already.", retry_after=_RETRY_AFTER)
        began = exchange.clock()
        limit = asyncio.timeout(timeout)
        self._limits.add(limit)
        self._bytes += size
        self._requests_of[flow] += 1
        self._bytes_of[flow] += size
        try:
            async with limit:
                return await ready()
        except TimeoutError:
            if self._draining:
                raise _draining() from None
            raise
        finally:
            self._limits.discard(limit)
            self._bytes -= size
            self._bytes_of[flow] -= size
            self._requests_of[flow] -= 1
            if not self._requests_of[flow]:
                del self._requests_of[flow], self._bytes_of[flow]
            exchange.waited += exchange.clock() - began

    def _takes(self, flow: str, size: int) -> bool:
        queue = self._queue()
        if not self._limits:
            return size <= queue.max_bytes
        requests = self._requests_of[flow] + 1
        held = self._bytes_of[flow] + size
        return requests < queue.max_requests - len(self._limits) and held + size <= queue.max_bytes - self._bytes

    def drain(self) -> None:
        """Refuse all waiting and all further requests."""
        self._draining = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)


def _draining() -> RefusedError:
    return RefusedError(Outcome.DRAINING, "This gateway is shutting down.", retry_after=1.0)
