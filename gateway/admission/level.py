"""How cautiously output lengths are predicted: a range of quantiles that finds its own lower end."""

from math import sqrt

LOWEST, HIGHEST = 0.0, 0.90
TOP = 0.985
"""The quantile that the most cautious prediction is made at."""
USUAL = 16
"""Sequences in flight that `Level.value` is for, and `FEW`: fewer than those make no difference any more."""
FEW = 4
CAUTION = 0.80
"""Where the lower end would start in a cache that the forecast may fill to its end."""
MARGIN = 5.0
"""What it starts lower for each share of the cache that the forecast leaves free: that is caution, too."""
RAISE = 0.1
"""Part of the way to `HIGHEST` that one sign of too little caution takes it. That and `EASE` make such a sign one in
some thousand requests: predictions follow the requests by themselves, and this is for what they do not know."""
EASE = 0.005
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
    """The quantiles at which an endpoint's requests are predicted: from a lower end to `TOP`.

    From 0 on they would be as their lengths are: right on average, and too short half of the time. What is left out
    at the lower end is caution. The more are in flight, the less of it is needed, as errors even out: a sum of so many
    is off by the square root of their number. Caution goes up when the engine preempts or its cache is full, which the
    forecast should have prevented, and down when the forecast kept work waiting for a while although the cache had room
    at its fullest.
    """

    __slots__ = ("_fullest", "_held", "_preemptions", "_raised_at", "_share", "_since", "value")

    def __init__(self, share: float) -> None:
        """Nothing is known.

        Args:
            share: of the cache, that the forecast may fill: now and then it is reached, if the forecast comes true.
        """
        self.value = max(LOWEST, CAUTION - MARGIN * (1.0 - share))
        """The lower end with `USUAL` sequences in flight, 0 to 1."""
        self._share = share
        self._preemptions: float | None = None
        self._raised_at: float | None = None
        self._since: float | None = None
        self._fullest = 0.0
        self._held = 0

    def fill(self, share: float) -> None:
        """The forecast may fill another share of the cache: what was learned stays, beside another start."""
        self.value = min(HIGHEST, max(LOWEST, self.value + MARGIN * (share - self._share)))
        self._share = share

    def at(self, draw: float, sequences: int) -> float:
        """The quantile so far (0 to 1) into the range, with so many in flight, by powers of two."""
        number = max(FEW, 1 << sequences.bit_length() >> 1)
        left_out: float = 1.0 - (1.0 - self.value) ** sqrt(USUAL / number)
        lower = min(TOP, left_out)
        return lower + (TOP - lower) * draw

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
            if self._held > 1 and self._fullest < self._share - NEAR:
                self.value = max(LOWEST, self.value - EASE * (self._share - NEAR - self._fullest))
            self._since = None
