"""The peak that the KV cache of an endpoint is heading for (the Past-Future scheduler, arXiv 2507.10150)."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add, mul

Row = tuple[int, int, int]
"""One request: tokens each of its sequences has yet to generate, tokens it holds, its sequences."""


def peak(rows: Iterable[Row]) -> int:
    """The most tokens that the requests will hold together, if each ends when it is predicted to.

    Every sequence gains a token with each step. A request holds most right before it ends, so the peak is at one of
    the ends: with the requests in order of what they have yet to generate, the most first, it is the most over k of
    (tokens held by the first k) + (steps to the end of the k-th) x (sequences of the first k).
    """
    held = sequences = most = 0
    for remaining, holds, grows in sorted(rows, reverse=True):
        held += holds
        sequences += grows
        most = max(most, held + remaining * sequences)
    return most


class Forecast:
    """The peak of what is in flight, and what one more request would make of it: exact, by one bisection.

    With the requests in order of their ends, the latest first, a newcomer of r steps and h tokens changes nothing at
    the ends after its own, adds h + r' at an end that is r' steps away, and makes one new candidate, its own end.
    """

    __slots__ = ("_after", "_ends", "_held", "_sequences", "_upto", "peak", "rows")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = sorted(rows, reverse=True)
        ordered = self.rows
        self._ends = [-row[0] for row in ordered]  # ascending, for bisect
        self._held = list(accumulate((row[1] for row in ordered), initial=0))
        self._sequences = list(accumulate((row[2] for row in ordered), initial=0))
        remaining = [row[0] for row in ordered]
        uses = list(map(add, self._held[1:], map(mul, remaining, self._sequences[1:])))
        self._upto = list(accumulate(uses, max, initial=0))
        """The most at any of the first k ends."""
        after = list(accumulate(map(add, reversed(uses), reversed(remaining)), max, initial=0))
        after.reverse()
        self._after = after
        """The most at any but the first k ends, with a token more for each step to it."""
        self.peak = self._upto[-1]
        """Tokens."""

    def with_request(self, row: Row) -> int:
        """The peak, tokens, if this request were in flight as well."""
        remaining, holds, grows = row
        if grows != 1:  # its growth is not the one that was summed up
            return peak([*self.rows, row])
        later = bisect_left(self._ends, -remaining)  # requests that end after it
        own = self._held[later] + holds + remaining * (self._sequences[later] + 1)
        before = self._after[later] + holds if later < len(self._ends) else 0
        return max(self._upto[later], own, before)
