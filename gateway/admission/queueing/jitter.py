"""The jitter and bounds of a Retry-After. `retry_after.py` has the time itself."""

from gateway.admission.prediction.spread import spread
from gateway.admission.tuning import TUNING

FLOOR = 1.0
CAP = 60.0
"""Bounds of a Retry-After, seconds. OpenAI's SDKs obey up to a minute in every release."""


class Jitter:
    """The jitter of Retry-After times, so that refused requests do not return together."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals = 0

    def after(self, seconds: float | None) -> float:
        """Retry-After for a request that could go in `seconds`: jittered upwards, from `FLOOR` to `CAP`."""
        self._refusals += 1
        jitter = 1 + TUNING.retry_jitter * spread(self._refusals)
        wait = TUNING.retry_unknown if seconds is None else seconds
        return min(max(wait, FLOOR), CAP / (1 + TUNING.retry_jitter)) * jitter
