"""PURE. The digest of the requests that ended at one front: what the process that decides does not see of them."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from heapq import nlargest
from itertools import accumulate
from typing import Any

import msgspec

from gateway.admission.outcomes import Outcome
from gateway.ops.pictures.picture import MOST_REQUESTS, Quantiles

TTFT_EDGES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 7.5, 10, 20, 30, 60, 120)
"""Those of `kvgate_ttft_seconds`."""
GAP_EDGES = tuple(edge * 10.0**power for power in (-3, -2, -1, 0) for edge in (1, 1.5, 2, 3, 5, 7))
"""1 ms to 7 s."""
MOST_SERVED = 100
"""Flows whose service is told apart; that of others is left out."""


class Ended(msgspec.Struct, frozen=True):
    """A request that has ended. Times are seconds."""

    number: int | None
    """Its id at the core; None if it never came there."""
    request_id: str
    model: str
    flow: str
    outcome: str
    endpoint: str | None
    prompt: int | None
    generated: int | None
    took: float
    waited: float
    first: float | None
    ago: float
    """Since its end."""


class OfModel(msgspec.Struct):
    """The figures of one model. Histograms count by the index of the edge."""

    outcomes: dict[str, int] = {}
    ttft: dict[int, int] = {}
    gap: dict[int, int] = {}
    served: dict[str, float] = {}
    """Tokens of service by flow."""
    drifted: dict[str, int] = {}
    """Prompts of which the engine's count was another, by who counted and what they brought."""

    def count(self, outcome: str, flow: str, *, service: float, first: float | None, gap: float | None) -> None:
        """Count the end of a request. `service` is what its flow is charged, in tokens; `gap` between two of them."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if service and (flow in self.served or len(self.served) < MOST_SERVED):
            self.served[flow] = self.served.get(flow, 0.0) + service
        if first is not None:
            _count(self.ttft, TTFT_EDGES, first)
        if gap is not None:
            _count(self.gap, GAP_EDGES, gap)

    def add(self, other: "OfModel") -> None:
        """Add the figures of another stretch of time, or another front."""
        for mine, theirs in self._beside(other):
            for key, number in theirs.items():
                mine[key] = mine.get(key, 0) + number

    def subtract(self, other: "OfModel") -> None:
        """Take away figures that were added."""
        for mine, theirs in self._beside(other):
            for key, number in theirs.items():
                left = mine.pop(key, 0) - number
                if left >= 1:  # what is less comes of an engine's numbers that are too large to be exact
                    mine[key] = left

    def copy(self) -> "OfModel":
        """The same figures, to be added to."""
        return OfModel(*(dict(mine) for mine, _ in self._beside(self)))

    def _beside(self, other: "OfModel") -> tuple[tuple[dict[Any, Any], Mapping[Any, Any]], ...]:
        return (
            (self.outcomes, other.outcomes),
            (self.ttft, other.ttft),
            (self.gap, other.gap),
            (self.served, other.served),
            (self.drifted, other.drifted),
        )

    def trim(self) -> None:
        """Forget the flows that were served the least: several fronts tell more than one may."""
        if len(self.served) > MOST_SERVED:
            self.served = dict(nlargest(MOST_SERVED, self.served.items(), key=lambda entry: entry[1]))


class Digest(msgspec.Struct):
    """All that ended since the digest before."""

    models: dict[str, OfModel] = {}
    ended: list[Ended] = []


class Digests:
    """Makes the digests of one front.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._models: dict[str, OfModel] = {}
        self._ended: deque[tuple[float, Ended]] = deque(maxlen=MOST_REQUESTS)

    def ended(
        self,
        *,
        number: int | None,
        request_id: str,
        model: str,
        flow: str,
        outcome: Outcome,
        endpoint: str | None,
        prompt: int | None,
        generated: int | None,
        service: float,
        began: float,
        waited: float,
        first: float | None,
        gap: float | None,
        now: float,
    ) -> None:
        """Note the end of a request.

        `service` is what its flow is charged, in tokens; `began` its arrival; `gap` the mean time between its tokens.
        """
        ending = outcome.value
        self._of(model).count(ending, flow, service=service, first=first, gap=gap)
        one = Ended(
            number, request_id, model, flow, ending, endpoint, prompt, generated, now - began, waited, first, 0.0
        )
        self._ended.append((now, one))

    def drifted(self, model: str, cause: str) -> None:
        """Note a prompt of which the engine's count was another, and who counted it and what it brought."""
        causes = self._of(model).drifted
        causes[cause] = causes.get(cause, 0) + 1

    def take(self) -> Digest:
        """All that ended since this was called last."""
        now = self._clock()
        digest = Digest(self._models, [msgspec.structs.replace(one, ago=now - at) for at, one in self._ended])
        self._models = {}
        self._ended.clear()
        return digest

    def _of(self, model: str) -> OfModel:
        figures = self._models.get(model)
        if figures is None:
            figures = self._models[model] = OfModel()
        return figures


def quantiles(counts: Mapping[int, int], edges: tuple[float, ...]) -> Quantiles:
    """The quantiles of counted values, within a bucket in proportion, as `histogram_quantile` of Prometheus."""
    total = sum(counts.values())
    if not total:
        return Quantiles(count=0)
    upto = list(accumulate(counts.get(index, 0) for index in range(len(edges) + 1)))
    p50, p90, p99 = (_quantile(share, upto, edges) for share in (0.5, 0.9, 0.99))
    return Quantiles(count=total, p50=p50, p90=p90, p99=p99)


def _quantile(share: float, upto: list[int], edges: tuple[float, ...]) -> float:
    rank = share * upto[-1]
    index = bisect_left(upto, rank)
    if index == len(edges):
        return edges[-1]
    below, lower = (upto[index - 1], edges[index - 1]) if index else (0, 0.0)
    return round(lower + (edges[index] - lower) * (rank - below) / (upto[index] - below), 4)


def _count(counts: dict[int, int], edges: tuple[float, ...], value: float) -> None:
    index = bisect_left(edges, value)
    counts[index] = counts.get(index, 0) + 1
