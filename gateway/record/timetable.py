"""The times at which a record is pictured.

Times of a series are seconds since the first event. Runs follow each other without the time between them, which no
record tells.
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from gateway.record.lines import Dropped, Happened, Started, read

MOST = 1800
"""Pictures of a record: one each second of half an hour, fewer of a longer one."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run, from its first event to its last, on its own clock; `offset` is its begin in the series."""

    began: float
    ended: float
    offset: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of the pictures."""

    runs: dict[int, Span]
    interval: float
    versions: tuple[str, ...]

    def times(self, run: int) -> list[float]:
        """Those of a run, on its own clock."""
        span = self.runs[run]
        number = ceil((span.ended - span.began) / self.interval)
        return [*(span.began + index * self.interval for index in range(number)), span.ended]


def timetable(file: Path, most: int = MOST) -> Timetable:
    """The times of a file's pictures, at most so many.

    Raises:
        EventLogError: the file is not an event log.
    """
    spans: dict[int, tuple[float, float]] = {}
    versions: dict[str, None] = {}
    run, gap = 0, False
    for line in read(file):
        match line:
            case Started():
                run, gap = run + 1, False
                versions[line.kvgate] = None
            case Dropped():
                gap = True
            case Happened() if not gap:
                spans[run] = spans.get(run, (line.at, line.at))[0], line.at
    whole = sum(ended - began for began, ended in spans.values())
    offset, runs = 0.0, {}
    for number, (began, ended) in spans.items():
        runs[number] = Span(began, ended, round(offset, 3))
        offset += ended - began
    return Timetable(runs, float(max(1, ceil(whole / max(1, most - 2 * len(spans))))), tuple(versions))
