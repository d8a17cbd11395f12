"""How fast requests leave, and so when a refused one should come back."""

from math import exp

TIME_CONSTANT = 20.0
"""Seconds over which completions are averaged."""
FLOOR = 1.0
CAP = 60.0
"""Seconds: OpenAI's SDKs follow a Retry-After of up to a minute in every release."""
UNKNOWN = 5.0
"""Seconds told while nothing has completed yet."""
JITTER = 0.25
"""Share of the answer that is spread, so that those refused together do not come back together."""
GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, spread evenly however many there are: a low-discrepancy sequence."""


class DrainRate:
    """Completions per second of the time in which anything was in flight: an idle pool is not a slow one."""

    __slots__ = ("_at", "_busy", "_completions", "_in_flight", "_known", "_refusals")

    def __init__(self) -> None:
        self._known = False
        self._completions = 0.0
        self._busy = 0.0
        self._at = 0.0
        self._in_flight = 0
        self._refusals = 0

    def dispatched(self, now: float) -> None:
        """A request was sent to an endpoint."""
        self._advance(now)
        self._in_flight += 1

    def left(self, now: float, *, completed: bool) -> None:
        """A request left its endpoint; `completed` says that this is how room is made, not a failure."""
        self._advance(now)
        self._in_flight -= 1
        if completed:
            self._completions += 1
            self._known = True

    def rate(self, now: float) -> float | None:
        """Completions per second; None before the first."""
        if not self._known:
            return None
        elapsed = self._elapsed(now)
        # A young average has not seen its whole time constant; no span shorter than a second is believed.
        span = TIME_CONSTANT * (1 - exp(-max(1.0, self._busy + elapsed) / TIME_CONSTANT))
        return self._completions * exp(-elapsed / TIME_CONSTANT) / span

    def retry_after(self, ahead: int, now: float) -> float:
        """Seconds until a request with so many ahead of it would have its turn, jittered upwards.

        Between `FLOOR` and `CAP`.
        """
        rate = self.rate(now)
        wait = UNKNOWN if rate is None else (ahead + 1) / max(rate, 1 / CAP)
        self._refusals += 1
        spread = 1 + JITTER * (self._refusals * GOLDEN % 1)
        return min(max(wait, FLOOR), CAP / (1 + JITTER)) * spread

    def _elapsed(self, now: float) -> float:
        return now - self._at if self._in_flight else 0.0

    def _advance(self, now: float) -> None:
        elapsed = self._elapsed(now)
        if elapsed:
            self._completions *= exp(-elapsed / TIME_CONSTANT)
            self._busy += elapsed
        self._at = now
