"""How long a prompt takes to its first token."""

WEIGHT = 0.1
"""What one first token adds to the mean."""


class PrefillRate:
    """Seconds per prompt token, from a request's dispatch to its first token, prompts before it included."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0

    def saw(self, seconds: float, tokens: int) -> None:
        """A first token came so long after a dispatch, with so many tokens to prefill up to it."""
        self._seconds += (seconds - self._seconds) * WEIGHT
        self._tokens += (tokens - self._tokens) * WEIGHT

    def seconds(self, tokens: int) -> float:
        """How long so many tokens take; 0 while nothing is known."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0
