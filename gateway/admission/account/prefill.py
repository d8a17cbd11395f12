"""The time from a dispatch to its first token."""

from gateway.admission.tuning import TUNING


class PrefillRate:
    """Seconds from a dispatch to its first token, per uncached prompt token, those queued before it included."""

    __slots__ = ("_deviation", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0
        self._deviation = 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        """Learn from a first token: the seconds since its dispatch, and the tokens computed until then."""
        if self._tokens:
            error = abs(seconds - tokens * self._seconds / self._tokens)
            self._deviation += (error - self._deviation) * TUNING.sample_weight
        self._seconds += (seconds - self._seconds) * TUNING.sample_weight
        self._tokens += (tokens - self._tokens) * TUNING.sample_weight

    @property
    def rate(self) -> float:
        """Prompt tokens per second; 0 while nothing is known."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def seconds(self, tokens: int) -> float:
        """Seconds that this many tokens take, on the cautious side; 0 while nothing is known."""
        if not self._tokens:
            return 0.0
        return tokens * self._seconds / self._tokens + TUNING.prefill_deviations * self._deviation
