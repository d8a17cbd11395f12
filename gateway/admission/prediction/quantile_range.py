"""The range of quantiles at which output lengths are predicted. It adapts its lower end."""

from collections.abc import Sequence
from math import exp, sqrt

from gateway.admission.tuning import TUNING

POWERS = 20
"""Of two: more sequences on one endpoint than these are not told apart."""


class QuantileRange:
    """The quantiles at which an endpoint's requests are predicted: from a lower end up to `quantile_top`.

    A range that starts at 0 predicts the true distribution: right on average, too low half of the time. A higher lower
    end is more cautious. With more requests in flight less caution is enough, because errors even out: the error of a
    sum grows with the square root of its terms. Room that the forecast must leave free anyway is caution, too. The
    lower end goes up when the engine preempts or its cache is full, as the forecast should have prevented that, and
    slowly comes back.
    """

    __slots__ = ("_at", "_lowers", "_preemptions", "_raised", "_share", "value")

    def __init__(self, share: float) -> None:
        """Begin without observations.

        Args:
            share: Share of the cache that the forecast may fill.
        """
        self._raised = 0.0
        self._at = 0.0
        self._preemptions: float | None = None
        self.value = -1.0
        """The lower end with `caution_sequences` sequences in flight, from 0 to `quantile_top`."""
        self.fill(share)

    def fill(self, share: float) -> None:
        """Let the forecast fill another share of the cache."""
        self._share = share
        self._raise(self._raised)

    def _raise(self, raised: float) -> None:
        self._raised = raised
        lower = TUNING.caution_start - TUNING.caution_margin * (1.0 - self._share) + raised
        value = max(0.0, min(TUNING.quantile_top, lower))
        if value == self.value:
            return
        self.value = value
        numbers = [max(TUNING.caution_fewest, 1 << power >> 1) for power in range(POWERS)]
        left_out = [1.0 - (1.0 - value) ** sqrt(TUNING.caution_sequences / number) for number in numbers]
        self._lowers = [min(TUNING.quantile_top, lower) for lower in left_out]
        """The lower end by powers of two of sequences in flight."""

    def at(self, draw: float, sequences: int) -> float:
        """The quantile at position `draw` (0 to 1) of the range. `sequences` in flight count by powers of two."""
        return self.each((draw,), sequences)[0]

    def each(self, draws: Sequence[float], sequences: int) -> list[float]:
        """The quantiles at several positions."""
        lower = self._lowers[min(sequences.bit_length(), POWERS - 1)]
        width = TUNING.quantile_top - lower
        return [lower + width * draw for draw in draws]

    def observe(self, usage: float, preemptions: float | None, now: float) -> None:
        """Take the effective usage and the engine's counter of preemptions.

        Args:
            usage: Share of the cache.
            preemptions: Number since the engine started; None if it does not say.
            now: Seconds.
        """
        before, self._preemptions = self._preemptions, preemptions
        self._raise(self._raised * exp((self._at - now) / TUNING.caution_fade))
        self._at = now
        preempted = before is not None and preemptions is not None and preemptions > before
        if preempted or usage >= TUNING.caution_full:
            self._raise(self._raised + (TUNING.quantile_top - self.value) * TUNING.caution_raise)
