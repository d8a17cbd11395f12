"""PURE. Quantiles of Prometheus histograms, as ranges that surely hold them.

A histogram gives the number of values up to each edge, and their sum. A quantile thus lies in one bucket. Above the
last edge the sum bounds it: subtract the least that the buckets below can hold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = 8
"""Number of ways tried to split a tail between two quantiles. The best of them bounds the quantile of their sum."""


@dataclass(frozen=True, slots=True)
class Range:
    """A figure between `low` and `high`, which are equal if it is known exactly. Both are finite."""

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
    """The distribution of a figure: its median, its 99th percentile and its maximum."""

    p50: Range
    p99: Range
    most: Range


@dataclass(frozen=True, slots=True)
class Bucket:
    """A number of values between `low` and `high`. `high` is None above the last edge."""

    low: int
    high: int | None
    count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of whole numbers, buckets in ascending order."""

    buckets: tuple[Bucket, ...]
    sum: int

    @classmethod
    def from_cumulative(cls, cumulative: Sequence[tuple[float, float]], total: float) -> "Histogram":
        """Convert from Prometheus' own form.

        Args:
            cumulative: `(le, count)` with ascending edges, the last one infinite.
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
        """Number of values."""
        return sum(bucket.count for bucket in self.buckets)

    def quantile(self, share: float) -> Range:
        """The range of the smallest value that at least this share (0 to 1] of all values does not exceed.

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
        """Its quantiles; None if it is empty."""
        return Distribution(self.quantile(0.5), self.quantile(0.99), self.quantile(1)) if self.count else None


def rank_of(share: float, count: int) -> int:
    """The rank of a quantile, from 1, by the nearest-rank method."""
    return max(1, math.ceil(share * count - 1e-9))


def summed(one: Histogram, other: Histogram) -> Distribution | None:
    """The distribution of the sum of two figures, given a histogram of each; None if they are empty.

    A sum is at least as large as each part. At most a share `a` of all values exceeds the (1 - a) quantile of one part,
    and at most `b` the (1 - b) quantile of the other. So at most a + b exceed these quantiles' sum (Fréchet's bounds).
    """
    if not one.count or not other.count:
        return None

    def quantile(share: float) -> Range:
        splits = [(1 - share) * step / STEPS for step in range(STEPS + 1)]
        most = min(one.quantile(1 - a).high + other.quantile(min(1.0, share + a)).high for a in splits)
        return Range(max(one.quantile(share).low, other.quantile(share).low), most)

    return Distribution(quantile(0.5), quantile(0.99), quantile(1))
