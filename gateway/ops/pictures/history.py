"""PURE. The last 15 minutes of a gateway: points for charts, and the sums of the last 5 minutes."""

from collections import deque
from collections.abc import Iterable

from msgspec import structs

from gateway.ops.pictures.digest import Digest, OfModel
from gateway.ops.pictures.parts import gone
from gateway.ops.pictures.picture import MOST_REQUESTS, RECENT, SPAN, Gauge, Point, Request, Sign

INTERVAL = 2.0
"""Seconds between two points."""


class History:
    """Points, what ended, and since when each sign is there. Times are those of a picture."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque()
        self._figures: deque[tuple[float, dict[str, OfModel]]] = deque()
        """Of each point of the last 5 minutes, by model."""
        self._sums: dict[str, OfModel] = {}
        """Of all these points."""
        self._open: dict[str, OfModel] = {}
        """Of what ended since the last point."""
        self._ended: deque[Request] = deque(maxlen=MOST_REQUESTS)
        self._counted: dict[str, tuple[int | None, int | None, int | None]] = {}
        """Of each endpoint at the last point: tokens generated, prompt tokens, preemptions."""
        self._since: dict[str, float] = {}

    def take(self, digest: Digest, at: float) -> None:
        """Take what ended at a front."""
        for model, figures in digest.models.items():
            self._open.setdefault(model, OfModel()).add(figures)
        self._ended.extend(gone(one, at - one.ago) for one in digest.ended)

    def add(
        self,
        at: float,
        waiting: dict[str, int],
        endpoints: Iterable[tuple[str, Gauge, tuple[int | None, int | None, int | None]]],
    ) -> None:
        """Add a point. Each endpoint brings its totals: tokens generated, prompt tokens, preemptions."""
        before = self._points[-1].at if self._points else at
        gauges, counted = {}, {}
        for name, gauge, totals in endpoints:
            gauges[name] = _since_before(gauge, self._counted.get(name), totals, at - before)
            counted[name] = totals
        self._counted = counted
        outcomes: dict[str, int] = {}
        for model, figures in self._open.items():
            figures.trim()
            self._sums.setdefault(model, OfModel()).add(figures)
            for outcome, number in figures.outcomes.items():
                outcomes[outcome] = outcomes.get(outcome, 0) + number
        self._points.append(Point(round(at, 2), waiting, gauges, outcomes))
        self._figures.append((at, self._open))
        self._open = {}
        while self._points[0].at <= at - SPAN:
            self._points.popleft()
        while self._figures[0][0] <= at - RECENT:
            for model, figures in self._figures.popleft()[1].items():
                sums = self._sums.get(model)
                if sums is not None:  # else all its points were empty
                    sums.subtract(figures)
                    if sums == OfModel():
                        del self._sums[model]

    def after(self, at: float) -> tuple[Point, ...]:
        """The points after a time."""
        found: list[Point] = []
        for point in reversed(self._points):
            if point.at <= at:
                break
            found.append(point)
        return tuple(reversed(found))

    @property
    def last(self) -> Point | None:
        """The latest point."""
        return self._points[-1] if self._points else None

    def recent(self) -> dict[str, OfModel]:
        """The figures of the last 5 minutes, by model."""
        recent = {model: figures.copy() for model, figures in self._sums.items()}
        for model, figures in self._open.items():
            recent.setdefault(model, OfModel()).add(figures)
        return recent

    def preempted(self) -> dict[str, int]:
        """Preemptions of the last 5 minutes, by endpoint."""
        sums: dict[str, int] = {}
        for point in self.after(self._points[-1].at - RECENT) if self._points else ():
            for name, gauge in point.endpoints.items():
                sums[name] = sums.get(name, 0) + gauge.preempted
        return sums

    def ended(self) -> Iterable[Request]:
        """The latest requests that ended, the latest first."""
        return reversed(self._ended)

    def dated(self, signs: Iterable[Sign], at: float, *, keep: bool) -> tuple[Sign, ...]:
        """The signs with the time at which each was first seen; `keep`: those that are gone are forgotten."""
        found = list(signs)
        if keep:
            self._since = {sign.key: self._since.get(sign.key, at) for sign in found}
        return tuple(
            sign if sign.since is not None else structs.replace(sign, since=round(self._since.get(sign.key, at), 1))
            for sign in found
        )


def _since_before(
    gauge: Gauge,
    before: tuple[int | None, int | None, int | None] | None,
    totals: tuple[int | None, int | None, int | None],
    seconds: float,
) -> Gauge:
    """The gauge with its rates."""
    if before is None or seconds <= 0:
        return gauge
    generated, prompt, preempted = (
        None if now is None or then is None else max(0, now - then) for now, then in zip(totals, before, strict=True)
    )
    return Gauge(
        gauge.usage,
        gauge.forecast,
        gauge.sequences,
        gauge.open,
        None if generated is None else round(generated / seconds, 1),
        None if prompt is None else round(prompt / seconds, 1),
        preempted or 0,
    )
