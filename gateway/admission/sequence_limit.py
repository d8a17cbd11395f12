"""How many sequences an endpoint runs at once."""

from gateway.admission.events import Observed

PROBE_AFTER = 30.0
"""Seconds at a learned limit, with nobody waiting in the engine, before a little more is tried."""
PROBE_SHARE = 8
"""A probe adds the limit divided by this, at least one."""


class SequenceLimit:
    """The configured limit, or one learned from the engine's plateau.

    An engine that runs the same number in two scrapes, while requests wait and its KV cache has room, has reached
    its limit. A plateau may be chance, so a learned limit is tried again: after `PROBE_AFTER` without anybody
    waiting it is raised a little, again and again; a true limit shows itself anew, a false one is soon gone.
    """

    __slots__ = ("_configured", "_previous", "_settled_at", "kv_low", "value")

    def __init__(self, configured: int | None, kv_low: float) -> None:
        self._configured = configured is not None
        self.kv_low = kv_low
        """Usage under which the cache has room."""
        self.value = configured
        """Sequences; None while unknown."""
        self._previous: Observed | None = None
        self._settled_at = 0.0

    @property
    def learned(self) -> bool:
        """Whether the limit in force was learned."""
        return not self._configured and self.value is not None

    def observe(self, sample: Observed, sequences: int) -> None:
        """Take a scrape, and how many sequences of ours were on the endpoint."""
        previous, self._previous = self._previous, sample
        if self._configured or sample.running is None or sample.waiting is None:
            return
        at = sample.sampled_at
        if self.value is not None and sample.running > self.value:
            self.value, self._settled_at = sample.running, at
        elif sample.waiting and sample.kv_usage is not None and sample.kv_usage < self.kv_low:
            if previous is not None and previous.waiting and previous.running == sample.running > 0:
                self.value, self._settled_at = sample.running, at
        elif (
            self.value is not None
            and not sample.waiting
            and sequences >= self.value
            and at - self._settled_at > PROBE_AFTER
        ):
            self.value += max(1, self.value // PROBE_SHARE)
            self._settled_at = at
