"""A clock that ticks in tokens: the progress of sequences that report none."""

from gateway.admission.account.ewma import Ewma
from gateway.admission.events import Observed
from gateway.admission.tuning import TUNING

FASTEST = 1e5
"""Tokens per second of one sequence: no engine comes near. A counter that says more would take the clock to readings
where one token is lost in rounding."""


class DecodeClock:
    """Tokens that one running sequence of an endpoint has generated, from the engine's own counter.

    Each engine step gives every running sequence one token. So the clock advances by the tokens that the engine
    generated, divided by the sequences that it ran. A new rate changes the speed of the clock, never its past
    readings: the difference of two readings is the tokens a sequence generated between them. Sequences in prefill
    count as running but generate nothing, so the clock errs on the slow side.
    """

    __slots__ = ("_at", "_delay", "_previous", "_rate", "_reading")

    def __init__(self, poll_interval: float) -> None:
        self._reading = 0.0
        self._at = 0.0
        self._rate = Ewma(TUNING.smoothing_polls * poll_interval)
        self._previous: Observed | None = None
        self._delay = 0.0

    def read(self, now: float) -> float:
        """Tokens since the clock was created."""
        return self._reading + self._rate.value * (now - self._at)

    @property
    def rate(self) -> float:
        """Tokens per second of one running sequence; 0 until two samples have measured it."""
        return self._rate.value

    @property
    def first_token_delay(self) -> float:
        """The mean delay from a dispatch to its first token (queue and prefill in the engine), in clock tokens."""
        return self._delay

    def observe(self, sample: Observed, now: float) -> None:
        """Take a scrape. The rate is measured only between two scrapes that both found sequences running."""
        previous, self._previous = self._previous, sample
        if previous is None or not previous.running or not sample.running:
            return
        if previous.generation_tokens is None or sample.generation_tokens is None:
            return
        tokens = sample.generation_tokens - previous.generation_tokens
        sequence_seconds = (sample.sampled_at - previous.sampled_at) * (previous.running + sample.running) / 2
        if sequence_seconds <= 0 or not 0 <= tokens <= FASTEST * sequence_seconds:  # the engine restarted, or is wrong
            return
        self._reading, self._at = self.read(now), now
        self._rate.sample(tokens / sequence_seconds, sample.sampled_at)

    def learn_delay(self, tokens: float) -> None:
        """Learn from the clock tokens between a request's dispatch and its first token."""
        self._delay += (max(0.0, tokens) - self._delay) * TUNING.sample_weight
