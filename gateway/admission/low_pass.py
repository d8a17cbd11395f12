"""Smoothing of what is sampled at uneven times."""

from math import exp


class LowPass:
    """A first-order low-pass filter. The first sample counts whole: there is nothing yet to smooth.

    Args:
        time_constant: seconds after which a step in the input has shown to 63 %.
    """

    __slots__ = ("_at", "_time_constant", "value")

    def __init__(self, time_constant: float) -> None:
        self._time_constant = time_constant
        self._at: float | None = None
        self.value = 0.0

    def sample(self, value: float, at: float) -> None:
        """Take a sample of time `at`."""
        if self._at is None:
            self.value = value
        else:
            self.value += (value - self.value) * (1 - exp((self._at - at) / self._time_constant))
        self._at = at

    def reset(self) -> None:
        """Forget every sample."""
        self._at = None
        self.value = 0.0
