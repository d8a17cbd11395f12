"""An exponentially weighted moving average of samples at uneven times."""

from math import exp


class Ewma:
    """An exponentially weighted moving average. The first sample sets it: there is nothing to smooth yet.

    Args:
        time_constant: Seconds after which the average shows 63 % of a step in its input.
    """

    __slots__ = ("_at", "_time_constant", "value")

    def __init__(self, time_constant: float) -> None:
        self._time_constant = time_constant
        self._at: float | None = None
        self.value = 0.0

    def sample(self, value: float, at: float) -> None:
        """Take a sample from time `at`, seconds."""
        if self._at is None:
            self.value = value
        else:
            self.value += (value - self.value) * (1 - exp((self._at - at) / self._time_constant))
        self._at = at

    def reset(self) -> None:
        """Forget every sample."""
        self._at = None
        self.value = 0.0
