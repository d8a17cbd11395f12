"""The time from a dispatch to its first token."""

SAMPLE_WEIGHT = 0.1
"""Weight of one first token in the means."""
DEVIATIONS = 2.0
"""Mean deviations added to an estimate: a first token that is promised in time should come in time."""


class PrefillRate:
    """Seconds from a dispatch to its first token, per prompt token to compute until then."""

    __slots__ = ("_deviation", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0
        self._deviation = 0.0

    def saw(self, seconds: float, tokens: int) -> None:
        """Learn from a first token: the seconds since its dispatch, and the tokens computed until then."""
        if self._tokens:
            error = abs(seconds - tokens * self._seconds / self._tokens)
            self._deviation += (error - self._deviation) * SAMPLE_WEIGHT
        self._seconds += (seconds - self._seconds) * SAMPLE_WEIGHT
        self._tokens += (tokens - self._tokens) * SAMPLE_WEIGHT

    def seconds(self, tokens: int) -> float:
        """Seconds that this many tokens take, on the cautious side; 0 while nothing is known."""
        return tokens * self._seconds / self._tokens + DEVIATIONS * self._deviation if self._tokens else 0.0
