"""PURE. The share of a model's requests that may be sent again after an endpoint answered with an error.

A limit for each request bounds what one request costs. When every engine fails, it still doubles the load, on engines
that have trouble already; a share of all requests does not. A request that went down with its engine needs no budget:
its work is lost, so sending it elsewhere adds nothing to what the engines have to do.
"""

from collections import deque

WINDOW = 10.0
"""Seconds over which requests and retries are counted."""
ALWAYS = 3.0
"""Retries a second that are allowed however few requests there are."""


class RetryBudget:
    """Counts requests and retries of the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._requests: deque[tuple[int, int]] = deque()
        """By whole second: how many."""
        self._retries: deque[tuple[int, int]] = deque()

    def sent(self, now: float) -> None:
        """Note that a request was sent for the first time."""
        _count(self._requests, now)

    def take(self, share: float, now: float) -> bool:
        """Whether a request may be sent again, if at most this share of all may. If so, it counts. 0 allows none."""
        most = share * _total(self._requests, now) + ALWAYS * WINDOW
        if not share or _total(self._retries, now) + 1 > most:
            return False
        _count(self._retries, now)
        return True


def _count(seconds: deque[tuple[int, int]], now: float) -> None:
    second = int(now)
    if seconds and seconds[-1][0] == second:
        seconds[-1] = (second, seconds[-1][1] + 1)
    else:
        seconds.append((second, 1))
        while seconds[0][0] <= second - WINDOW:
            seconds.popleft()


def _total(seconds: deque[tuple[int, int]], now: float) -> int:
    return sum(number for second, number in seconds if second > int(now) - WINDOW)
