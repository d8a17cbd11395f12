"""PURE. The returns of refused requests: repeats that add nothing to the demand already counted."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

FORGOTTEN = 600.0
"""Seconds after which an equal request counts as new."""
MOST = 65536
"""Most refused requests remembered; the latest stay."""


class Returns(Generic[T]):
    """Recognises refused requests by their fingerprints. Of equal ones, each refusal is matched by one return."""

    def __init__(self) -> None:
        self._refused: dict[int, deque[tuple[int, float, T]]] = {}
        self._order: deque[tuple[int, float, int]] = deque()
        self._count = 0

    def refused(self, fingerprint: int, what: T, now: float) -> None:
        """Note a request with this fingerprint, refused for lack of room. 0 cannot be recognised."""
        if not fingerprint:
            return
        self._count += 1
        self._refused.setdefault(fingerprint, deque()).append((self._count, now, what))
        self._order.append((self._count, now, fingerprint))
        while self._order[0][1] < now - FORGOTTEN or len(self._order) > MOST:
            number, _, old = self._order.popleft()
            alike = self._refused.get(old)
            if alike is not None and alike[0][0] == number:
                self._take(old)

    def came(self, fingerprint: int, now: float) -> T | None:
        """What was refused, if the arriving request is its return; else None."""
        while (alike := self._refused.get(fingerprint)) is not None:
            at = alike[0][1]
            what = self._take(fingerprint)
            if at >= now - FORGOTTEN:
                return what
        return None

    def _take(self, fingerprint: int) -> T:
        alike = self._refused[fingerprint]
        _, _, what = alike.popleft()
        if not alike:
            del self._refused[fingerprint]
        return what
