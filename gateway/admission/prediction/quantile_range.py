"""The range of quantiles at which output lengths are predicted. It adapts its lower end."""

from math import sqrt

LOWEST, HIGHEST = 0.0, 0.90
TOP = 0.985
"""Upper end of the range: the quantile of the most cautious prediction."""
USUAL = 16
"""Number of sequences in flight that `QuantileRange.value` is for. Fewer than `FEW` count as `FEW`."""
FEW = 4
START = 0.80
"""Initial lower end if the forecast may fill the whole cache."""
MARGIN = 5.0
"""Decrease of that per share of the cache that the forecast must leave free: free room is caution, too."""
RAISE = 0.1
"""Step towards `HIGHEST` after one sign of too little caution, as a share of the distance. `RAISE` and `EASE` balance
at one such sign in about a thousand requests. The predictions adapt by themselves; this covers what they miss."""
EASE = 0.005
"""Step down after one wasteful span, per share of the cache that stayed unused."""
SETTLING = 5.0
"""Seconds between two raises: requests admitted before the first are still there."""
FULL = 0.97
"""Cache usage that the forecast should have prevented."""
NEAR = 0.01
"""Distance below the forecast's bound at which a span's peak usage does not count as waste yet."""
SPAN = 15.0
"""Length of a span, seconds. Each span is judged by its peak usage."""


class QuantileRange:
    """The quantiles at which an endpoint's requests are predicted: from a lower end up to `TOP`.

    A range that starts at 0 predicts the true distribution: right on average, too low half of the time. A higher lower
    end is more cautious. With more requests in flight less caution is enough, because errors even out: the error of a
    sum grows with the square root of its terms. The lower end goes up when the engine preempts or its cache is full,
    as the forecast should have prevented that. It goes down when the forecast kept requests waiting through a span
    whose peak usage left room.
    """

    __slots__ = ("_fullest", "_held", "_preemptions", "_raised_at", "_share", "_since", "value")

    def __init__(self, share: float) -> None:
        """Begin without observations.

        Args:
            share: Share of the cache that the forecast may fill. A correct forecast reaches it now and then.
        """
        self.value = max(LOWEST, START - MARGIN * (1.0 - share))
        """The lower end with `USUAL` sequences in flight, from 0 to 1."""
        self._share = share
        self._preemptions: float | None = None
        self._raised_at: float | None = None
        self._since: float | None = None
        self._fullest = 0.0
        self._held = 0

    def fill(self, share: float) -> None:
        """Let the forecast fill another share of the cache. The start moves; what was learned stays."""
        self.value = min(HIGHEST, max(LOWEST, self.value + MARGIN * (share - self._share)))
        self._share = share

    def at(self, draw: float, sequences: int) -> float:
        """The quantile at position `draw` (0 to 1) of the range. `sequences` in flight count by powers of two."""
        number = max(FEW, 1 << sequences.bit_length() >> 1)
        left_out: float = 1.0 - (1.0 - self.value) ** sqrt(USUAL / number)
        lower = min(TOP, left_out)
        return lower + (TOP - lower) * draw

    def observe(self, usage: float, preemptions: float | None, now: float, *, holding: bool) -> None:
        """Take the effective usage and the engine's counter of preemptions.

        Args:
            usage: Share of the cache.
            preemptions: Number since the engine started; None if it does not say.
            now: Seconds.
            holding: Whether the forecast alone keeps a request waiting.
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
