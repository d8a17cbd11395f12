"""The gate of one endpoint: closed while its engine is saturated.

It keeps the state that the rows `busy`, `gate` and `engine_waiting` of `rules.py` read. `gate` declines everybody from
the time usage goes over `kv_high` until it is below `kv_low`; `kv` declines whoever would take it over `kv_high`.
"""

from math import inf

from gateway.admission.tuning import TUNING


class Gate:
    """Hysteresis on effective KV usage, and the engine's own signs of saturation."""

    __slots__ = ("_fresh", "_high", "_low", "_over", "_sampled_at", "busy_until", "closed", "full_with")

    def __init__(self, kv_high: float, kv_low: float, poll_interval: float) -> None:
        self._high = kv_high
        self._low = kv_low
        self._fresh = TUNING.fresh_polls * poll_interval
        self.closed = False
        """Whether effective usage went over the high mark and is not yet below the low one."""
        self._over = 0
        self._sampled_at = 0.0
        self.busy_until = -inf
        """End of the time in which a busy engine gets no more than it had; in the past if it was not busy."""
        self.full_with = 0
        """Sequences of ours that it had when it last said that it is busy."""

    def govern(self, kv_high: float, kv_low: float) -> None:
        """Close and open at other usages."""
        self._high, self._low = kv_high, kv_low

    def update(self, usage: float | None) -> None:
        """Take the endpoint's effective usage. None means unknown, and opens the gate."""
        if usage is None or usage < self._low:
            self.closed = False
        elif usage > self._high:
            self.closed = True

    def sample_waiting(self, waiting: int, unconfirmed: int, sampled_at: float) -> None:
        """Take the number of requests that wait in the engine; `unconfirmed` of them may be our own burst."""
        self._over = self._over + 1 if waiting > unconfirmed else 0
        self._sampled_at = sampled_at

    def note_busy(self, now: float, sequences: int) -> None:
        """Note that the engine refused a request as it is busy, with so many sequences of ours."""
        self.busy_until, self.full_with = now + TUNING.busy_span, sequences

    def scraped(self, sampled_at: float) -> None:
        """Note a scrape: it is newer than any sign of a busy engine before it."""
        if sampled_at > self.busy_until - TUNING.busy_span:
            self.busy_until = -inf

    def engine_waits(self, now: float) -> bool:
        """Whether requests that we cannot account for wait in the engine."""
        return self._over >= TUNING.closing_samples and now - self._sampled_at <= self._fresh
