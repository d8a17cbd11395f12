"""PURE. Which requests are refused ones that come back: they ask for nothing more than was asked for before."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

FORGOTTEN = 600.0
"""Seconds after which an equal request is a new one."""
MOST = 65536
"""Refused requests that are remembered, the latest."""


class Returns(Generic[T]):
    """Knows refused requests again by their key. Equal ones are counted: each that was refused returns once."""

    def __init__(self) -> None:
        self._refused: dict[int, deque[tuple[int, float, T]]] = {}
        self._order: deque[tuple[int, float, int]] = deque()
        self._count = 0

    def refused(self, key: int, what: T, now: float) -> None:
        """One with this key was refused for want of room; 0: it cannot be known again."""
        if not key:
            return
        self._count += 1
        self._refused.setdefault(key, deque()).append((self._count, now, what))
        self._order.append((self._count, now, key))
        while self._order[0][1] < now - FORGOTTEN or len(self._order) > MOST:
            number, _, old = self._order.popleft()
            alike = self._refused.get(old)
            if alike is not None and alike[0][0] == number:
                self._take(old)

    def came(self, key: int, now: float) -> T | None:
        """What was refused, where one that arrives is its return."""
        while (alike := self._refused.get(key)) is not None:
            at = alike[0][1]
            what = self._take(key)
            if at >= now - FORGOTTEN:
                return what
        return None

    def _take(self, key: int) -> T:
        alike = self._refused[key]
        _, _, what = alike.popleft()
        if not alike:
            del self._refused[key]
        return what
