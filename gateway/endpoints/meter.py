"""PURE. The meter of one engine's work since it last began to serve, from its metrics, in bounded memory."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from gateway.endpoints.exposition import EngineMetrics
from gateway.ops.pace import LONG, Pace, Stretch, compare

MOST_ROWS = 120
"""Most rows kept. When it is reached, pairs merge into rows of twice the length."""
SEEN = 1.0
"""Mean requests in flight from which a gauge, read only now and then, gives a fair average."""


class _Counted(NamedTuple):
    """The counters of one scrape, and its time."""

    at: float
    completed: float
    prompt: float
    output: float


class _Row(NamedTuple):
    """A stretch of time with work. Gauges are summed over its seconds."""

    seconds: float
    completed: float
    prompt: float
    output: float
    in_flight: float
    usage: float
    """NaN if the engine does not say."""


class Meter:
    """Completions and requests in flight, over all the time with work."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._row_seconds = 0.0
        self._last: _Counted | None = None

    def take(self, metrics: EngineMetrics, at: float) -> None:
        """Take the next scrape, at this time in seconds. A restarted engine is measured anew."""
        completed, prompt, output = metrics.completed, metrics.completed_prompt, metrics.completed_output
        running, waiting = metrics.running, metrics.waiting
        if completed is None or prompt is None or output is None or running is None or waiting is None:
            return
        last, self._last = self._last, _Counted(at, completed, prompt, output)
        if last is None:
            return
        seconds, done = at - last.at, (completed - last.completed, prompt - last.prompt, output - last.output)
        if min(done) < 0:
            self._rows, self._row_seconds = [], 0.0
            return
        if not 0 < seconds <= LONG or not (done[0] or running or waiting):
            return  # what was in flight in between is unknown, or nothing was
        usage = math.nan if metrics.kv_usage is None else metrics.kv_usage
        self._add(_Row(seconds, *done, seconds * (float(running) + float(waiting)), seconds * usage))

    @property
    def pace(self) -> Pace | None:
        """The change of its pace; None if it cannot be told."""
        third = len(self._rows) // 3
        return compare(_stretch(self._rows[:third]), _stretch(self._rows[len(self._rows) - third :]))

    def _add(self, row: _Row) -> None:
        if self._rows and self._rows[-1].seconds + row.seconds / 2 < self._row_seconds:  # nearer with it than without
            self._rows[-1] = _joined((self._rows[-1], row))
            return
        self._rows.append(row)
        if len(self._rows) == MOST_ROWS:
            self._rows = [_joined(pair) for pair in zip(self._rows[::2], self._rows[1::2], strict=True)]
            self._row_seconds = sum(row.seconds for row in self._rows) / len(self._rows)


def _joined(rows: Iterable[_Row]) -> _Row:
    return _Row(*map(sum, zip(*rows, strict=True)))


def _stretch(rows: list[_Row]) -> Stretch | None:
    if not rows:
        return None
    seconds, completed, prompt, output, in_flight, usage = _joined(rows)
    if completed < 1 or not SEEN * seconds <= in_flight < math.inf:
        return None
    return Stretch(
        seconds,
        completed / seconds,
        in_flight / seconds,
        round(prompt / completed),
        round(output / completed),
        usage / seconds if math.isfinite(usage) else None,
    )
