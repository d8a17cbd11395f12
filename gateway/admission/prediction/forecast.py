"""The predicted peak of an endpoint's KV cache (the Past-Future scheduler, arXiv 2507.10150)."""

from bisect import bisect_left

Row = tuple[int, int, int]
"""One request: tokens that each sequence has yet to generate, tokens it holds, number of sequences."""


class End:
    """Requests that end together, as predicted."""

    __slots__ = ("held", "sequences")

    def __init__(self, held: int, sequences: int) -> None:
        self.held = held
        """Tokens that they hold now."""
        self.sequences = sequences


Ends = dict[int, End]
"""All requests in flight, by the steps until their predicted ends."""


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
        steps = sorted(ends, reverse=True)
        self._ends = [-remaining for remaining in steps]
        """Steps until each end, negated: in ascending order."""
        uses: list[int] = []
        held, sequences, upto, after = [0], [0], [0], [0] * (len(steps) + 1)
        holds = grows = most = 0
        for remaining in steps:
            end = ends[remaining]
            holds += end.held
            grows += end.sequences
            use = holds + remaining * grows
            if use > most:  # noqa: PLR1730 - a call would double the loop's time
                most = use
            uses.append(use)
            held.append(holds)
            sequences.append(grows)
            upto.append(most)
        self.peak = -(-most // parts)
        """Tokens."""
        most = 0
        for later in range(len(steps) - 1, -1, -1):
            with_one = uses[later] + steps[later] * parts
            if with_one > most:  # noqa: PLR1730
                most = with_one
            after[later] = most
        self._uses = uses
        """Tokens in use at each end."""
        self._held, self._sequences = held, sequences
        """Tokens that the first k ends hold now, and their sequences."""
        self._upto = upto
        """Most tokens in use at any of the first k ends."""
        self._after = after
        """Most tokens in use at any end after the first k, with one more sequence that grows from now on."""

    def with_request(self, row: Row) -> int:
        """The peak in tokens, with this request also in flight."""
        most = self._upto[bisect_left(self._ends, -row[0])]
        return max(self.until_end(row), -(-most // self._parts))

    def until_end(self, row: Row) -> int:
        """The same up to the end of this request."""
        parts = self._parts
        remaining, holds, grows = row[0], row[1] * parts, row[2] * parts
        later = bisect_left(self._ends, -remaining)  # number of later ends
        most = self._held[later] + holds + remaining * (self._sequences[later] + grows)
        if later < len(self._ends):
            if grows == parts:
                after = self._after[later]
            else:
                ends, uses = self._ends[later:], self._uses[later:]
                after = max(use - end * grows for end, use in zip(ends, uses, strict=True))
            most = max(most, after + holds)
        return -(-most // parts)
