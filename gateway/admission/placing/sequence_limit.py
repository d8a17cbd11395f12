"""The most sequences that an endpoint runs at once, configured or learned."""

from gateway.admission.events import Observed
from gateway.admission.tuning import TUNING


class SequenceLimit:
    """The configured limit, or a limit learned from a plateau of the engine.

    An engine has reached its limit if it runs as many as it ever did in two scrapes, while others wait and its KV cache
    has room. With fewer it waits for something else: a request that was just sent, for the end of a step. One alone may
    be a long prompt, until whose end no other begins: a limit of 1 would let nothing refute it for long. A plateau may
    be chance, and what runs more refutes it. So a learned limit is probed: after each `probe_after` without a waiting
    request it goes up a little. A true limit shows again.
    """

    __slots__ = ("_changed_at", "_configured", "_most", "_previous", "kv_low", "value")

    def __init__(self, configured: int | None, kv_low: float) -> None:
        self._configured = configured is not None
        self.kv_low = kv_low
        """Usage below which the cache has room."""
        self.value = configured
        """Sequences; None while unknown."""
        self._most = 1
        """Most sequences seen running at once."""
        self._previous: Observed | None = None
        self._changed_at = 0.0

    @property
    def learned(self) -> bool:
        """Whether the limit in force was learned."""
        return not self._configured and self.value is not None

    def observe(self, sample: Observed, sequences: int) -> None:
        """Take a scrape, and the number of our sequences on the endpoint."""
        previous, self._previous = self._previous, sample
        if self._configured or sample.running is None or sample.waiting is None:
            return
        at = sample.sampled_at
        if sample.running > self._most:
            self._most, self.value = sample.running, None
        elif sample.waiting and sample.kv_usage is not None and sample.kv_usage < self.kv_low:
            if previous is not None and previous.waiting and previous.running == sample.running == self._most > 1:
                self.value, self._changed_at = sample.running, at
        elif (
            self.value is not None
            and not sample.waiting
            and sequences >= self.value
            and at - self._changed_at > TUNING.probe_after
        ):
            self.value += max(1, self.value // TUNING.probe_divisor)
            self._changed_at = at
