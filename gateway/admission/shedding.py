"""Who waits in vain, and when a refused request should come back."""

from gateway.admission.spread import spread

FLOOR = 1.0
CAP = 60.0
"""Seconds: OpenAI's SDKs follow a Retry-After of up to a minute in every release."""
UNKNOWN = 5.0
"""Seconds told while no rate is known."""
JITTER = 0.25
"""Share of the answer that is spread, so that those refused together do not come back together."""
WAITING_SHARE = 0.5
"""Share of its TTFT target that a request may wait at the least, however long its own prefill takes: a long prompt is
no reason to refuse it."""


def patience(target: float | None, prefill: float, ttl: float) -> float:
    """Seconds that a request may wait for its dispatch.

    Args:
        target: to the first token, from the arrival; None where nobody set one.
        prefill: from the dispatch to the first token, predicted.
        ttl: the longest wait of all.
    """
    if target is None:
        return ttl
    return min(ttl, max(target - prefill, target * WAITING_SHARE))


class RetryAfter:
    """When refused requests should come back: spread over time, so that they do not return together."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals = 0

    def after(self, seconds: float | None) -> float:
        """Seconds to tell a client whose request could go in so many; jittered upwards, from `FLOOR` to `CAP`."""
        self._refusals += 1
        jitter = 1 + JITTER * spread(self._refusals)
        wait = UNKNOWN if seconds is None else seconds
        return min(max(wait, FLOOR), CAP / (1 + JITTER)) * jitter
