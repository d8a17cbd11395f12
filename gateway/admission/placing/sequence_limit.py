"""The most sequences that an endpoint runs at once, configured or learned."""

from gateway.admission.events import Observed
from gateway.admission.tuning import TUNING


class SequenceLimit:
    """The configured limit, or a limit learned from a plateau of the engine.

    An engine shows its limit if it runs as many as it ever did while others wait, its KV cache has room, and it
    computes no prompt: one that fills the batch keeps others waiting, too. What was just sent may wait for the end of a
    step. Two scrapes in a row that show it are a plateau. One alone may be a long prompt that reports nothing: a limit
    of 1 would let nothing refute it for long.

    A plateau may still be chance, and what runs more refutes it. So a learned limit is tried: after `probe_after`
    without a waiting request it goes up by one. A true limit shows again, and each time twice as long passes until the
    next trial.
    """

    __slots__ = ("_changed_at", "_configured", "_most", "_shown", "_trial_after", "kv_low", "value")

    def __init__(self, configured: int | None, kv_low: float) -> None:
        self._configured = configured is not None
        self.kv_low = kv_low
        """Usage below which the cache has room."""
        self.value = configured
        """Sequences; None while unknown."""
        self._most = 1
        """Most sequences seen running at once."""
        self._shown = False
        """Whether the last scrape showed it."""
        self._changed_at = 0.0
        self._trial_after = TUNING.probe_after
        """Seconds at this limit until a higher one is tried."""

    @property
    def learned(self) -> bool:
        """Whether the limit in force was learned."""
        return not self._configured and self.value is not None

    def observe(self, sample: Observed, sequences: int, unconfirmed: int, just_sent: int) -> None:
        """Take a scrape, and how many sequences of ours are there, have no token yet, and were just sent."""
        if self._configured or sample.running is None or sample.waiting is None:
            return
        running, waiting, at = sample.running, sample.waiting, sample.sampled_at
        has_room = sample.kv_usage is not None and sample.kv_usage < self.kv_low
        shown = waiting > just_sent and has_room and running == self._most > 1 and unconfirmed <= waiting
        again, self._shown = self._shown, shown
        if running > self._most:
            self._most, self.value, self._trial_after = running, None, TUNING.probe_after
        elif shown and (again or self.value is not None):
            if self.value is not None and self.value > running:
                self._trial_after = min(2 * self._trial_after, TUNING.probe_after_most)
            self.value, self._changed_at = running, at
        elif (
            self.value is not None
            and not waiting
            and sequences >= self.value - round(TUNING.most_places_spared * self.value)
            and at - self._changed_at > self._trial_after
        ):
            self.value += 1
            self._changed_at = at
