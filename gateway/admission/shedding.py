"""Who waits in vain, and when a refused request should come back."""

from gateway.admission.events import Arrived
from gateway.admission.outcomes import Outcome
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


class Promise:
    """A turn that is kept for one refused request, until it comes back."""

    __slots__ = ("band", "cost", "due", "flow", "key", "order", "outcome", "over", "spans", "until", "used")

    def __init__(self, arrival: Arrived, order: int, outcome: Outcome, due: float, until: float) -> None:
        self.key = arrival.key
        self.band = arrival.band
        self.flow = arrival.flow
        self.order = order
        """Its turn in the queue, that of its first arrival."""
        self.outcome = outcome
        """How it was refused."""
        self.due = due
        """When it should come back, and `until`, how long it may take: who comes in between has that turn."""
        self.until = until
        self.cost = 0.0
        """Tokens of service that are promised."""
        self.spans = (0.0, 0.0)
        """Seconds that these take of its flow's share, and of all of the pool."""
        self.used = False
        """It came back."""
        self.over = False
        """It goes, was refused again, has left, or did not come back."""


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
