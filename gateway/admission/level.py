"""How cautiously output lengths are predicted: a quantile that finds its own level."""

LOWEST, HIGHEST = 0.30, 0.97
START = 0.70
RAISE = 0.4
"""Part of the way to `HIGHEST` that one sign of too little caution takes it."""
EASE = 0.03
"""What one span of waste takes off, for each share of the cache that was not needed."""
SETTLING = 5.0
"""Seconds for which one raise speaks: what was let in before it is still there."""
FULL = 0.97
"""Share of the cache in use that the forecast should not have let it come to."""
NEAR = 0.01
"""Share of the cache by which the fullest moment of a while may stay under what the forecast may fill."""
SPAN = 15.0
"""Seconds over which the fullest moment is looked for."""


class Level:
    """The quantile at which an endpoint's requests are predicted.

    It goes up when the engine preempts or its cache is full, which the forecast should have prevented, and down
    when the forecast kept work waiting for a while although the cache had room at its fullest.
    """

    __slots__ = ("_fullest", "_held", "_preemptions", "_raised_at", "_roomy", "_since", "value")

    def __init__(self, share: float) -> None:
        """Nothing is known.

        Args:
            share: of the cache, that the forecast may fill: now and then it is reached, if the forecast comes true.
        """
        self.value = START
        """0 to 1."""
        self._roomy = share - NEAR
        self._preemptions: float | None = None
        self._raised_at: float | None = None
        self._since: float | None = None
        self._fullest = 0.0
        self._held = 0

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
        if preempted or usage >= FULL:
            if self._raised_at is None or now - self._raised_at >= SETTLING:
                self.value += (HIGHEST - self.value) * RAISE
                self._raised_at = now
            self._since = None
        if self._since is None:
            self._since, self._fullest, self._held = now, 0.0, 0
        self._fullest = max(self._fullest, usage)
        self._held += holding
        if now - self._since >= SPAN:
            if self._held > 1 and self._fullest < self._roomy:
                self.value = max(LOWEST, self.value - EASE * (self._roomy - self._fullest))
            self._since = None
