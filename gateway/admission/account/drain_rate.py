"""The rate under pressure at which a pool serves, or an engine begins with prompts."""

from math import exp, inf

from gateway.admission.tuning import TUNING


class DrainRate:
    """Service completed per second of pressure: while a request waits, or shortly after one was refused.

    Only under pressure does the rate show what the pool can do; otherwise it shows the demand. It counts completions,
    as these make room. Dispatches would show the worst moments only, because a dispatch ends a wait.
    """

    __slots__ = ("_at", "_served", "_span", "_until")

    def __init__(self) -> None:
        self._served = 0.0
        self._span = 0.0
        self._at = 0.0
        self._until = -inf

    def pressed(self, now: float) -> None:
        """Note that a request could not go at once, or still waits."""
        self._advance(now)
        self._until = now + TUNING.drain_pressed

    def completed(self, cost: float, now: float) -> None:
        """Note that a request has left its endpoint after this much service."""
        self._advance(now)
        if now <= self._until:
            self._served += cost

    def rate(self, now: float) -> float | None:
        """Tokens of service per second; None while unknown. Changes nothing."""
        served, span = self._at_time(now)
        return served / span if span >= TUNING.drain_least_span else None

    def measured(self, now: float) -> tuple[float, float]:
        """Service and seconds of pressure, for another core. Changes nothing."""
        return self._at_time(now)

    def recall(self, measured: tuple[float, float], now: float) -> None:
        """Go on from what another core measured. Ignored after own measurements."""
        if not self._span:
            self._served, self._span = measured
            self._at = now

    def _advance(self, now: float) -> None:
        if now > self._at:
            self._served, self._span = self._at_time(now)
            self._at = now

    def _at_time(self, now: float) -> tuple[float, float]:
        """Service and seconds at this time, both decayed."""
        elapsed = min(now, self._until) - self._at
        if elapsed <= 0:
            return self._served, self._span
        fade = exp(-elapsed / TUNING.drain_window)
        return self._served * fade, self._span * fade + TUNING.drain_window * (1 - fade)
