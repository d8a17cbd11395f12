"""The peak that the KV cache of an endpoint is heading for (the Past-Future scheduler, arXiv 2507.10150)."""

from bisect import bisect_left
from collections.abc import Iterable

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
    Requests that end together count as one.
    """

    __slots__ = ("_after", "_ends", "_held", "_sequences", "_upto", "_uses", "peak")

    def __init__(self, rows: Iterable[Row]) -> None:
        holds: dict[int, int] = {}
        grows: dict[int, int] = {}
        for remaining, tokens, sequences in rows:
            if remaining in holds:
                holds[remaining] += tokens
                grows[remaining] += sequences
            else:
                holds[remaining] = tokens
                grows[remaining] = sequences
        held = all_grow = most = 0
        self._ends: list[int] = []
        """Negative, so that they ascend."""
        self._uses: list[int] = []
        """Tokens held at each end."""
        self._held = [0]
        """By the first k, now, and how many sequences these are."""
        self._sequences = [0]
        self._upto = [0]
        """The most at any of the first k ends."""
        for remaining in sorted(holds, reverse=True):
            held += holds[remaining]
            all_grow += grows[remaining]
            use = held + remaining * all_grow
            if use > most:  # noqa: PLR1730 - a call would take as long as all else
                most = use
            self._ends.append(-remaining)
            self._uses.append(use)
            self._held.append(held)
            self._sequences.append(all_grow)
            self._upto.append(most)
        self.peak = most
        """Tokens."""
        most = 0
        self._after = [0]
        """The most at any but the first k ends, with a token more for each step to it."""
        for end, use in zip(reversed(self._ends), reversed(self._uses), strict=True):
            if use - end > most:  # noqa: PLR1730
                most = use - end
            self._after.append(most)
        self._after.reverse()

    def with_request(self, row: Row) -> int:
        """The peak, tokens, if this request were in flight as well."""
        remaining, holds, grows = row
        later = bisect_left(self._ends, -remaining)  # ends after its own
        own = self._held[later] + holds + remaining * (self._sequences[later] + grows)
        if later == len(self._ends):
            return max(own, self._upto[later])
        if grows == 1:
            return max(own, self._upto[later], self._after[later] + holds)
        ends, uses = self._ends[later:], self._uses[later:]
        after = max(use - end * grows for end, use in zip(ends, uses, strict=True))
        return max(own, self._upto[later], after + holds)
