"""How far a sequence has come that nobody saw: a clock that ticks in tokens."""

from gateway.admission.events import Observed
from gateway.admission.low_pass import LowPass

SMOOTHING_POLLS = 2.0
"""Polls over which the decode rate is smoothed."""
DELAY_WEIGHT = 0.1
"""What one request adds to the mean delay of a first token."""


class DecodeClock:
    """Tokens that one running sequence of an endpoint has generated, by the engine's own counter.

    In a batch every running sequence gains a token at each step, so the clock advances by the tokens the engine
    generated divided by the sequences it ran. A change of rate changes how fast the clock goes on, never what it
    showed: two readings apart tell the tokens a sequence generated between them. Sequences still in prefill
    run too and generate nothing, so the clock is rather slow than fast.
    """

    __slots__ = ("_at", "_delay", "_previous", "_rate", "_reading")

    def __init__(self, poll_interval: float) -> None:
        self._reading = 0.0
        self._at = 0.0
        self._rate = LowPass(SMOOTHING_POLLS * poll_interval)
        self._previous: Observed | None = None
        self._delay = 0.0

    def read(self, now: float) -> float:
        """Tokens since the clock was made."""
        return self._reading + self._rate.value * (now - self._at)

    @property
    def rate(self) -> float:
        """Tokens per second of one running sequence; 0 until two samples measured it."""
        return self._rate.value

    @property
    def first_token_delay(self) -> float:
        """The mean delay from a dispatch to its first token (queue and prefill in the engine), in clock tokens."""
        return self._delay

    def observe(self, sample: Observed, now: float) -> None:
        """Take a scrape. Only the time between two scrapes that both found sequences running is measured."""
        previous, self._previous = self._previous, sample
        if previous is None or not previous.running or not sample.running:
            return
        if previous.generation_tokens is None or sample.generation_tokens is None:
            return
        tokens = sample.generation_tokens - previous.generation_tokens
        elapsed = sample.sampled_at - previous.sampled_at
        if tokens < 0 or elapsed <= 0:  # the engine restarted
            return
        self._reading, self._at = self.read(now), now
        self._rate.sample(tokens / elapsed / ((previous.running + sample.running) / 2), sample.sampled_at)

    def saw_delay(self, tokens: float) -> None:
        """Learn how far the clock went between a request's dispatch and its first token."""
        self._delay += (max(0.0, tokens) - self._delay) * DELAY_WEIGHT
