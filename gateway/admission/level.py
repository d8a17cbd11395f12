"""How cautiously output lengths are predicted: a quantile that finds its own level."""

LOWEST, HIGHEST = 0.40, 0.97
START = 0.60
RAISE = 0.25
"""Part of the way to `HIGHEST` that one sign of too little caution takes it."""
EASE = 0.01
"""What one second of waste takes off."""
SETTLING = 5.0
"""Seconds for which one raise speaks: what was let in before it is still there."""
FULL = 0.99
"""Share of the cache in use from which on the engine is about to preempt."""
ROOMY = 0.85
"""Share of the cache below which it could have taken more."""


class Level:
    """The quantile at which an endpoint's requests are predicted.

    It goes up when the engine preempts or its cache is full, which the forecast should have prevented, and down
    while the forecast keeps work waiting although the cache has room.
    """

    __slots__ = ("_preemptions", "_raised_at", "_seen_at", "value")

    def __init__(self) -> None:
        self.value = START
        """0 to 1."""
        self._preemptions: float | None = None
        self._raised_at: float | None = None
        self._seen_at: float | None = None

    def observe(self, usage: float, preemptions: float | None, now: float, *, holding: bool) -> None:
        """Take the effective usage and the engine's counter of preemptions.

        Args:
            usage: share of the cache.
            preemptions: since the engine started; None where it does not say.
            now: seconds.
            holding: whether the forecast alone keeps somebody waiting.
        """
        before, self._preemptions = self._preemptions, preemptions
        preempted = before is not None and preemptions is not None and preemptions > before
        elapsed = 0.0 if self._seen_at is None else min(now - self._seen_at, 1.0)
        self._seen_at = now
        if preempted or usage >= FULL:
            if self._raised_at is None or now - self._raised_at >= SETTLING:
                self.value += (HIGHEST - self.value) * RAISE
                self._raised_at = now
        elif holding and usage < ROOMY:
            self.value = max(LOWEST, self.value - EASE * elapsed)
