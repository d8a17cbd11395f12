"""The figures that fronts counted, as each said last; those that have gone count on, so that no sum falls."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from gateway.ops.merged import Figures, merged, unpacked
from gateway.ops.metrics import exposed
from gateway.tier.frames import FromFront, Report, Reported
from gateway.tier.line import Line

REPORTED_WITHIN = 1.0
"""Seconds for a front to report. One that takes longer counts with its last figures."""
MOST_GONE = 16
"""Fronts whose figures are kept apart after they are gone: until then one may come back and count on."""


class Reports:
    """Asks the fronts, and keeps what they say."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}
        self._gone: dict[int, bytes] = {}
        self._earlier: Figures = ()
        """The sum of those that have been gone for longest."""
        self._number = 0
        self._missing: dict[int, tuple[set[int], asyncio.Event]] = {}
        """The fronts that each question still waits for."""

    def came(self, front: int) -> None:
        """A front has connected, for the first time or again."""
        if (figures := self._gone.pop(front, None)) is not None:
            self._last[front] = figures

    def left(self, front: int) -> None:
        """A front has gone."""
        if (figures := self._last.pop(front, None)) is not None:
            self._gone[front] = figures
        if len(self._gone) > MOST_GONE:
            oldest = self._gone.pop(next(iter(self._gone)))
            self._earlier = merged((), gone=(self._earlier, unpacked(oldest)))
        for missing, complete in self._missing.values():
            _strike(front, missing, complete)

    def take(self, front: int, message: Reported) -> None:
        """Take what a front says."""
        self._last[front] = message.figures
        if message.number in self._missing:
            _strike(front, *self._missing[message.number])

    async def ask(self, fronts: Mapping[int, Line[FromFront]]) -> None:
        """Ask these fronts, and wait until all have reported, or time is over."""
        if not fronts:
            return
        self._number += 1
        number, complete = self._number, asyncio.Event()
        self._missing[number] = set(fronts), complete
        for line in fronts.values():
            line.send(Report(number))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORTED_WITHIN):
                    await complete.wait()
        finally:
            del self._missing[number]

    async def exposition(self, own: Figures, *, openmetrics: bool = False) -> bytes:
        """The text of `/metrics`: the owner's own figures, and what the fronts said last."""
        fronts, gone = list(self._last.values()), list(self._gone.values())
        return await asyncio.to_thread(_exposition, own, fronts, gone, self._earlier, openmetrics=openmetrics)


def _strike(front: int, missing: set[int], complete: asyncio.Event) -> None:
    missing.discard(front)
    if not missing:
        complete.set()


def _exposition(
    own: Figures, fronts: Sequence[bytes], gone: Sequence[bytes], earlier: Figures, *, openmetrics: bool
) -> bytes:
    return exposed(merged(own, map(unpacked, fronts), [*map(unpacked, gone), earlier]), openmetrics=openmetrics)
