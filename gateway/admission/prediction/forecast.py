"""The predicted peak of an endpoint's KV cache (the Past-Future scheduler, arXiv 2507.10150)."""

from bisect import bisect_left

Row = tuple[int, int, int]
"""One request: tokens that each sequence has yet to generate, tokens it holds, number of sequences."""


Ends = dict[int, tuple[int, int]]
"""Requests in flight by the steps until their predicted ends: the tokens they hold now, and their sequences."""


class Forecast:
    """The peak of the requests in flight, and the peak with one more request: exact, by one bisection.

    Each step gives every sequence one token. A request holds most right before its end, so the peak is at one of the
    ends. Sort the ends, latest first. The peak is the maximum over k of

        (tokens held by the first k) + (steps until the k-th end) x (sequences of the first k).

    A new request with h tokens that ends after r steps changes nothing at later ends. At an end r' <= r steps away it
    adds h, and r' tokens for each of its sequences. Its own end is one more candidate.
    """

    __slots__ = ("_after", "_ends", "_held", "_parts", "_sequences", "_upto", "_uses", "peak")

    def __init__(self, ends: Ends, parts: int) -> None:
        """Compute the peak.

        Args:
            ends: The ends of all requests in flight.
            parts: How often `ends` counts each request: a request with several ends counts with their mean.
        """
        self._parts = parts
        held = all_grow = most = 0
        self._ends: list[int] = []
        """Steps until each end, negated: in ascending order."""
        self._uses: list[int] = []
        """Tokens in use at each end."""
        self._held = [0]
        """Tokens that the first k ends hold now; `_sequences` counts their sequences."""
        self._sequences = [0]
        self._upto = [0]
        """Most tokens in use at any of the first k ends."""
        for remaining in sorted(ends, reverse=True):
            holds, grow = ends[remaining]
            held += holds
            all_grow += grow
            use = held + remaining * all_grow
            if use > most:  # noqa: PLR1730 - a call would double the loop's time
                most = use
            self._ends.append(-remaining)
            self._uses.append(use)
            self._held.append(held)
            self._sequences.append(all_grow)
            self._upto.append(most)
        self.peak = -(-most // parts)
        """Tokens."""
        most = 0
        self._after = [0]
        """Most tokens in use at any end after the first k, with one more sequence that grows from now on."""
        for end, use in zip(reversed(self._ends), reversed(self._uses), strict=True):
            with_one = use - end * parts
            if with_one > most:  # noqa: PLR1730
                most = with_one
            self._after.append(most)
        self._after.reverse()

    def with_request(self, row: Row) -> int:
        """The peak in tokens, with this request also in flight."""
        parts = self._parts
        remaining, holds, grows = row[0], row[1] * parts, row[2] * parts
        later = bisect_left(self._ends, -remaining)  # number of later ends
        own = self._held[later] + holds + remaining * (self._sequences[later] + grows)
        most = max(own, self._upto[later])
        if later < len(self._ends):
            if grows == parts:
                after = self._after[later]
            else:
                ends, uses = self._ends[later:], self._uses[later:]
                after = max(use - end * grows for end, use in zip(ends, uses, strict=True))
            most = max(most, after + holds)
        return -(-most // parts)
