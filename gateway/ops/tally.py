"""A histogram for what happens with every request: counting in it costs a search among its edges, and no lock."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class Tally:
    """Counts values by the first edge that they do not exceed. For one thread: that of the event loop."""

    __slots__ = ("_counts", "_edges", "_sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` ascend; what is above the last counts too."""
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """As Prometheus has them: each edge, and how many values were at most that."""
        edges = (*self._edges, float("inf"))
        return [(floatToGoString(edge), count) for edge, count in zip(edges, accumulate(self._counts), strict=True)]

    @property
    def sum(self) -> float:
        """Of all values."""
        return self._sum


class Tallies:
    """One family of them, by labels; a collector of `prometheus_client`."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], edges: Sequence[float]) -> None:
        self._family = name, meaning, tuple(labels)
        self._edges = edges
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def of(self, *labels: str) -> Tally:
        """The one with these values of the labels."""
        found = self._tallies.get(labels)
        if found is None:
            found = self._tallies[labels] = Tally(self._edges)
        return found

    def forget(self, *labels: str) -> None:
        """There is no such one any more."""
        self._tallies.pop(labels, None)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """All of them, at a scrape."""
        name, meaning, labels = self._family
        family = HistogramMetricFamily(name, meaning, labels=labels)
        for values, tally in self._tallies.items():
            family.add_metric(values, buckets=tally.buckets(), sum_value=tally.sum)
        yield family
