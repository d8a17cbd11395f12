"""PURE. Quantiles out of Prometheus histograms, as the ranges that surely hold them.

A histogram says how many values were at most each edge, and their sum. A quantile then lies in one bucket. Above the
last edge the sum still bounds it: what the buckets below must at least have taken is not left for the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = 8
"""Ways to split what two quantiles may leave out between them: the best of these bounds the quantile of their sum."""


@dataclass(frozen=True, slots=True)
class Range:
    """A figure that is at least `low` and at most `high`; equal where it is known exactly. Both are finite."""

    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high

    def __str__(self) -> str:
        return f"{self.low:,}" if self.exact else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a figure is spread: half of all values are at most `p50`, 99 of 100 at most `p99`, all at most `most`."""

    p50: Range
    p99: Range
    most: Range


@dataclass(frozen=True, slots=True)
class Bucket:
    """So many values of at least `low` and at most `high`; `high` is None above the last edge."""

    low: int
    high: int | None
    count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Whole numbers, in buckets in their order."""

    buckets: tuple[Bucket, ...]
    sum: int

    @classmethod
    def from_cumulative(cls, cumulative: Sequence[tuple[float, float]], total: float) -> "Histogram":
        """From Prometheus' own form.

        Args:
            cumulative: `(le, count)`, the edges ascending, the last one infinite.
            total: the sample `_sum`.
        """
        buckets = []
        low, below = 0, 0
        for edge, count in cumulative:
            high = None if math.isinf(edge) else math.floor(edge)
            buckets.append(Bucket(low, high, max(0, round(count) - below)))
            below = max(below, round(count))
            low = low if high is None else high + 1
        return cls(tuple(buckets), round(total))

    @property
    def count(self) -> int:
        """Values in it."""
        return sum(bucket.count for bucket in self.buckets)

    def quantile(self, share: float) -> Range:
        """The least value that at least this share (0 to 1] of all values does not exceed.

        Raises:
            ValueError: it is empty.
        """
        count = self.count
        if not count:
            raise ValueError("an empty histogram has no quantiles")
        rank, below, least = rank_of(share, count), 0, 0
        for bucket in self.buckets:
            if below + bucket.count >= rank and bucket.count:
                if bucket.high is not None:
                    return Range(bucket.low, bucket.high)
                above = count - rank + 1
                least += (bucket.count - above) * bucket.low
                return Range(bucket.low, max(bucket.low, (self.sum - least) // above))
            below += bucket.count
            least += bucket.count * bucket.low
        raise AssertionError("unreachable: the ranks end with the last value")

    def distribution(self) -> Distribution | None:
        """Its quantiles; None of an empty one."""
        return Distribution(self.quantile(0.5), self.quantile(0.99), self.quantile(1)) if self.count else None


def rank_of(share: float, count: int) -> int:
    """The rank, from 1, of a quantile: the nearest-rank method."""
    return max(1, math.ceil(share * count - 1e-9))


def summed(one: Histogram, other: Histogram) -> Distribution | None:
    """Of the sums of two figures of the same things, each of which has a histogram of its own; None of empty ones.

    A sum is at least either of its parts. And at most a share `a` of the things exceeds the (1 - a) quantile of the
    one part, a share `b` that of the other: so no more than a + b exceed both quantiles' sum (Fréchet's bounds).
    """
    if not one.count or not other.count:
        return None

    def quantile(share: float) -> Range:
        splits = [(1 - share) * step / STEPS for step in range(STEPS + 1)]
        most = min(one.quantile(1 - a).high + other.quantile(min(1.0, share + a)).high for a in splits)
        return Range(max(one.quantile(share).low, other.quantile(share).low), most)

    return Distribution(quantile(0.5), quantile(0.99), quantile(1))
