"""The range of quantiles at which output lengths are predicted. It adapts its lower end."""

from math import sqrt

from gateway.admission.tuning import TUNING


class QuantileRange:
    """The quantiles at which an endpoint's requests are predicted: from a lower end up to `quantile_top`.

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
        self.value = max(0.0, TUNING.caution_start - TUNING.caution_margin * (1.0 - share))
        """The lower end with `caution_sequences` sequences in flight, from 0 to 1."""
        self._share = share
        self._preemptions: float | None = None
        self._raised_at: float | None = None
        self._since: float | None = None
        self._fullest = 0.0
        self._held = 0

    def fill(self, share: float) -> None:
        """Let the forecast fill another share of the cache. The start moves; what was learned stays."""
        self.value = min(TUNING.caution_most, max(0.0, self.value + TUNING.caution_margin * (share - self._share)))
        self._share = share

    def at(self, draw: float, sequences: int) -> float:
        """The quantile at position `draw` (0 to 1) of the range. `sequences` in flight count by powers of two."""
        number = max(TUNING.caution_fewest, 1 << sequences.bit_length() >> 1)
        left_out: float = 1.0 - (1.0 - self.value) ** sqrt(TUNING.caution_sequences / number)
        top = TUNING.quantile_top
        lower = min(top, left_out)
        return lower + (top - lower) * draw

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
        if preempted or usage >= TUNING.caution_full:
            if self._raised_at is None or now - self._raised_at >= TUNING.caution_settling:
                self.value += (TUNING.caution_most - self.value) * TUNING.caution_raise
                self._raised_at = now
            self._since = None
        if self._since is None:
            self._since, self._fullest, self._held = now, 0.0, 0
        self._fullest = max(self._fullest, usage)
        self._held += holding
        if now - self._since >= TUNING.caution_span:
            if self._held > 1 and self._fullest < self._share - TUNING.caution_near:
                wasted = self._share - TUNING.caution_near - self._fullest
                self.value = max(0.0, self.value - TUNING.caution_ease * wasted)
            self._since = None
