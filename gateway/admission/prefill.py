"""How long a prompt takes to its first token."""

WEIGHT = 0.1
"""What one first token adds to the means."""
CAUTION = 2.0
"""Mean deviations that an estimate adds: who is promised a first token in time should have it."""


class PrefillRate:
    """Seconds from a request's dispatch to its first token, by the prompt tokens to compute up to it."""

    __slots__ = ("_deviation", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0
        self._deviation = 0.0

    def saw(self, seconds: float, tokens: int) -> None:
        """A first token came so long after a dispatch, with so many tokens to compute up to it."""
        if self._tokens:
            error = abs(seconds - tokens * self._seconds / self._tokens)
            self._deviation += (error - self._deviation) * WEIGHT
        self._seconds += (seconds - self._seconds) * WEIGHT
        self._tokens += (tokens - self._tokens) * WEIGHT

    def seconds(self, tokens: int) -> float:
        """How long so many tokens take, rather more than less; 0 while nothing is known."""
        return tokens * self._seconds / self._tokens + CAUTION * self._deviation if self._tokens else 0.0
