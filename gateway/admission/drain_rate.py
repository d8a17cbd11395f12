"""How fast a pool takes work when it is pressed, in tokens of service."""

from math import exp

TIME_CONSTANT = 10.0
"""Seconds of pressure over which the rate is averaged."""
YOUNG = 1.0
"""Seconds: no shorter span is believed alone."""
PRESSED_FOR = 1.0
"""Seconds for which a pool counts as pressed after a request could not go at once: it is still about full."""


class DrainRate:
    """Service completed per second of the time in which the pool was pressed: somebody waits, or was just refused.

    Only then does the rate tell what the pool can do: otherwise it is what is asked for. What is completed makes the
    room; what is dispatched would tell of the worst moments only, as a wait ends with a dispatch.
    """

    __slots__ = ("_at", "_served", "_span", "_until")

    def __init__(self) -> None:
        self._served = 0.0
        self._span = 0.0
        self._at = 0.0
        self._until = 0.0

    def pressed(self, now: float) -> None:
        """A request could not go at once, or one still waits."""
        self._advance(now)
        self._until = now + PRESSED_FOR

    def completed(self, cost: float, now: float) -> None:
        """A request that took so many tokens of service has left its endpoint."""
        self._advance(now)
        if now <= self._until:
            self._served += cost

    def rate(self, now: float) -> float | None:
        """Tokens of service per second; None while nothing is known. Leaves no trace."""
        served, span = self._at_time(now)
        return served / span if span >= YOUNG else None

    def _advance(self, now: float) -> None:
        if now > self._at:
            self._served, self._span = self._at_time(now)
            self._at = now

    def _at_time(self, now: float) -> tuple[float, float]:
        """Service and seconds, both faded, as they are by then."""
        elapsed = min(now, self._until) - self._at
        if elapsed <= 0:
            return self._served, self._span
        fade = exp(-elapsed / TIME_CONSTANT)
        return self._served * fade, self._span * fade + TIME_CONSTANT * (1 - fade)
