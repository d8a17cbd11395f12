"""The peak that the KV cache of an endpoint is heading for (the Past-Future scheduler, arXiv 2507.10150)."""

from bisect import bisect_left

Row = tuple[int, int, int]
"""One request: tokens each of its sequences has yet to generate, tokens it holds, its sequences."""


class Ends:
    """What is in flight by when it ends. What ends together counts as one."""

    __slots__ = ("holds", "numbers", "sequences")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        """Each end's, by the steps to it."""
        self.holds: list[int] = []
        """Tokens of those that end, by the end's number, and how many `sequences` these are."""
        self.sequences: list[int] = []

    def add(self, remaining: int, holds: int, sequences: int) -> None:
        """What ends in so many steps, and holds so many tokens now."""
        number = self.numbers.get(remaining, -1)
        if number < 0:
            self.numbers[remaining] = len(self.holds)
            self.holds.append(holds)
            self.sequences.append(sequences)
        else:
            self.holds[number] += holds
            self.sequences[number] += sequences


class Forecast:
    """The peak of what is in flight, and what one more request would make of it: exact, by one bisection.

    Every sequence gains a token with each step, and a request holds most right before it ends, so the peak is at one
    of the ends: with these in order, the latest first, it is the most over k of (tokens held by the first k) + (steps
    to the k-th) x (sequences of the first k). A newcomer of r steps and h tokens changes nothing at the ends after its
    own, adds h + r' at an end that is r' steps away, and makes one new candidate, its own end.
    """

    __slots__ = ("_after", "_ends", "_held", "_parts", "_sequences", "_upto", "_uses", "peak")

    def __init__(self, ends: Ends, parts: int) -> None:
        """Work it out.

        Args:
            ends: of what is in flight.
            parts: how often all of it is counted there: with several ends, a request takes the mean of what it would.
        """
        self._parts = parts
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
        for remaining in sorted(ends.numbers, reverse=True):
            number = ends.numbers[remaining]
            held += ends.holds[number]
            all_grow += ends.sequences[number]
            use = held + remaining * all_grow
            if use > most:  # noqa: PLR1730 - a call would take as long as all else
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
        """The most at any but the first k ends, with a token more of one request for each step to it."""
        for end, use in zip(reversed(self._ends), reversed(self._uses), strict=True):
            with_one = use - end * parts
            if with_one > most:  # noqa: PLR1730
                most = with_one
            self._after.append(most)
        self._after.reverse()

    def with_request(self, row: Row) -> int:
        """The peak, tokens, if this request were in flight as well."""
        parts = self._parts
        remaining, holds, grows = row[0], row[1] * parts, row[2] * parts
        later = bisect_left(self._ends, -remaining)  # ends after its own
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
