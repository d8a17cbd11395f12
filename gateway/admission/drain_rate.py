"""How fast the queue empties, in tokens of service."""

from math import exp

TIME_CONSTANT = 10.0
"""Seconds of backlog over which the rate is averaged."""
YOUNG = 1.0
"""Seconds: no shorter span of backlog is believed alone."""


class DrainRate:
    """Service dispatched per second of the time in which somebody waited.

    Only then does the rate tell what the pool can do: while nobody waits it is what is asked for. It starts from a
    guess, which counts like `YOUNG` seconds of measurement.
    """

    __slots__ = ("_at", "_backlogged", "_served", "_span")

    def __init__(self) -> None:
        self._served = 0.0
        self._span = 0.0
        self._at = 0.0
        self._backlogged = False

    def guess(self, rate: float) -> None:
        """Start from this rate, tokens of service per second."""
        self._served, self._span = rate * YOUNG, YOUNG

    def dispatched(self, cost: float, now: float) -> None:
        """A request of so many tokens of service left the queue."""
        self._advance(now)
        if self._backlogged:
            self._served += cost

    def backlog(self, now: float, *, waiting: bool) -> None:
        """Whether anybody waits from now on."""
        if waiting != self._backlogged:
            self._advance(now)
            self._backlogged = waiting

    def rate(self, now: float) -> float | None:
        """Tokens of service per second; None while nothing is known."""
        self._advance(now)
        return self._served / self._span if self._span >= YOUNG * 0.999 else None

    def _advance(self, now: float) -> None:
        if self._backlogged:
            elapsed = now - self._at
            fade = exp(-elapsed / TIME_CONSTANT)
            self._served *= fade
            self._span = self._span * fade + TIME_CONSTANT * (1 - fade)
        self._at = now
