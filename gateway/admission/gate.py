"""The gate of one endpoint: closed while its engine is saturated."""

from enum import StrEnum
from math import inf

from gateway.admission.policy import FRESH_POLLS

CLOSING_SAMPLES = 2
"""Samples in a row that must show requests waiting: one alone may be a burst on its way in."""
BUSY_HOLD = 1.0
"""Seconds for which an endpoint that answered "busy" is left alone, unless a scrape comes sooner."""


class Closed(StrEnum):
    """Why an endpoint takes no more."""

    __hash__ = str.__hash__  # that of Enum is a Python function, and every refusal asks for it

    KV = "kv"
    """Effective KV usage went above `kv_high` and is not yet below `kv_low`."""
    ENGINE_WAITING = "engine_waiting"
    """Requests that we cannot account for wait inside the engine."""
    PREFILL = "prefill"
    """As much is promised to streams without a token as may be (`policy.UNSEEN_SHARE`)."""
    FORECAST = "forecast"
    """What is in flight would outgrow the cache with one more."""
    SHARE = "share"
    """The request's flow has its fair share in flight, and what room is left is kept for others (`headroom`)."""
    SEQUENCES = "sequences"
    """It runs as many sequences as it can."""
    BUSY = "busy"
    """It has just refused a request for lack of room."""


class Gate:
    """Hysteresis on KV usage, and the engine's own signs of saturation."""

    __slots__ = ("_fresh", "_high", "_kv_closed", "_low", "_over", "_sampled_at", "busy_until")

    def __init__(self, kv_high: float, kv_low: float, poll_interval: float) -> None:
        self._high = kv_high
        self._low = kv_low
        self._fresh = FRESH_POLLS * poll_interval
        self._kv_closed = False
        self._over = 0
        self._sampled_at = 0.0
        self.busy_until = -inf
        """Until when the endpoint is left alone after a refusal; in the past where there is none."""

    def govern(self, kv_high: float, kv_low: float) -> None:
        """Close and open at other usages from now on."""
        self._high, self._low = kv_high, kv_low

    def update(self, usage: float | None) -> None:
        """Take the endpoint's effective usage; None where nobody knows it, which closes nothing."""
        if usage is None or usage < self._low:
            self._kv_closed = False
        elif usage > self._high:
            self._kv_closed = True

    def sample_waiting(self, waiting: int, unconfirmed: int, sampled_at: float) -> None:
        """Take the requests that wait in the engine for capacity, and how many of them may just be our own burst."""
        self._over = self._over + 1 if waiting > unconfirmed else 0
        self._sampled_at = sampled_at

    def hold(self, now: float) -> None:
        """The endpoint refused a request for lack of room."""
        self.busy_until = now + BUSY_HOLD

    def scraped(self, sampled_at: float) -> None:
        """A scrape came in: it knows more than a refusal before it."""
        if sampled_at > self.busy_until - BUSY_HOLD:
            self.busy_until = -inf

    def closed(self, now: float) -> Closed | None:
        """Why it is; None while it is open."""
        if self._kv_closed:
            return Closed.KV
        if self._engine_waiting(now):
            return Closed.ENGINE_WAITING
        return Closed.BUSY if now < self.busy_until else None

    def reasons(self, now: float) -> tuple[Closed, ...]:
        """All that close it; nothing when it is open."""
        closed: tuple[Closed, ...] = ()
        if self._kv_closed:
            closed += (Closed.KV,)
        if self._engine_waiting(now):
            closed += (Closed.ENGINE_WAITING,)
        if now < self.busy_until:
            closed += (Closed.BUSY,)
        return closed

    def _engine_waiting(self, now: float) -> bool:
        return self._over >= CLOSING_SAMPLES and now - self._sampled_at <= self._fresh
