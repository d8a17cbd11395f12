"""A fast histogram for every request: counting costs one search among its edges, and no lock.

A value of a request that is traced may be remembered as an exemplar: in OpenMetrics each bucket shows its last one.
"""

from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from prometheus_client.core import Exemplar, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

TRACE = "trace_id"
"""The label of an exemplar, as the OpenMetrics specification names it."""


class Tally:
    """Counts values by the first edge that they do not exceed. The event loop's thread counts; another may read."""

    __slots__ = ("_counts", "_edges", "_exemplars", "_sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` ascend. Values above the last edge count too."""
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0
        self._exemplars: dict[int, Exemplar] = {}
        """The last of each bucket."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def exemplify(self, value: float, trace: str, at: float) -> None:
        """Remember a value that was counted, with the id of its trace and its Unix time."""
        self._exemplars[bisect_left(self._edges, value)] = Exemplar({TRACE: trace}, value, at)

    def buckets(self) -> list[tuple[str, int, Exemplar | None]]:
        """Cumulative buckets as in Prometheus: each edge, the number of values up to it, and an exemplar."""
        counts, exemplars = accumulate(self._counts), self._exemplars
        return [
            (edge, count, exemplars.get(number))
            for number, (edge, count) in enumerate(zip(_written(tuple(self._edges)), counts, strict=True))
        ]

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum


@lru_cache
def _written(edges: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, (*edges, float("inf"))))


class Tallies:
    """A family of tallies by labels; a collector of `prometheus_client`."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], edges: Sequence[float]) -> None:
        self._family = name, meaning, tuple(labels)
        self._edges = edges
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def of(self, *labels: str) -> Tally:
        """The tally with these label values."""
        found = self._tallies.get(labels)
        if found is None:
            found = self._tallies[labels] = Tally(self._edges)
        return found

    def keep(self, labels: Container[tuple[str, ...]]) -> None:
        """Drop the tallies with other label values than these."""
        self._tallies = {values: tally for values, tally in self._tallies.items() if values in labels}

    def forget(self, first: str) -> None:
        """Drop the tallies with this first label value."""
        self._tallies = {values: tally for values, tally in self._tallies.items() if values[0] != first}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """All tallies, at a scrape."""
        name, meaning, labels = self._family
        family = HistogramMetricFamily(name, meaning, labels=labels)
        for values, tally in list(self._tallies.items()):  # the loop may add to them meanwhile
            family.add_metric(values, buckets=tally.buckets(), sum_value=tally.sum)
        yield family
