"""The base of a process that decides for fronts, as its signals and its supervisor see it."""

import asyncio
from abc import ABC, abstractmethod

import structlog

_POLL = 0.1
"""Seconds between two checks for connected fronts."""
_log = structlog.get_logger("kvgate.tier")


class DecidingProcess(ABC):
    """A process without clients, whose end waits for its fronts."""

    @property
    @abstractmethod
    def active(self) -> int:
        """Fronts of this machine that are connected."""

    @property
    def where(self) -> int | str:
        """0: clients come to the fronts."""
        return 0

    @property
    def loaded(self) -> frozenset[str]:
        """Nothing: it counts no prompts."""
        return frozenset()

    async def drain(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the fronts of this machine to go."""
        try:
            async with asyncio.timeout(timeout):
                while self.active:  # noqa: ASYNC110  # fronts go when their requests have ended
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            _log.warning("gave up on fronts that did not go in time", fronts=self.active)

    async def hand_over(self, timeout: float) -> None:
        """End at once: there are never two owners, and fronts wait for the next."""
        del timeout
