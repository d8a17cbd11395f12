"""The report of comparisons: a table, JSON and a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gateway.simulation.compare import Row
from gateway.simulation.result import Result

WIDTH = 124
"""Width of a table, in columns."""


LONG = 100.0
"""Seconds from which on hundredths are dropped."""
POINTS = 150
"""Points of a line over time, at most about twice as many."""


class PlotError(Exception):
    """A picture cannot be drawn. The message says why."""


def table(rows: Sequence[Row], title: str) -> Table:
    """A table with a row for each contender, `WIDTH` columns wide."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    grid.add_column("", no_wrap=True)
    headers = ("preempted", "tok/s", "in SLO", "goodput", "/ oracle", "refused", "TTFT p50", "p99 s", "gap p99", "KV")
    several = len({job.request.flow for job in rows[0].result.jobs}) > 1
    for name in (*headers, "fair") if several else headers:
        grid.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        result, slo = row.result, row.slo
        grid.add_row(
            result.contender,
            f"{result.preemptions:,} ({result.preemption_rate:.2%})",
            f"{result.throughput:,.0f}",
            f"{result.in_slo(slo):.1%}",
            f"{result.goodput(slo):,}",
            f"{row.relative:.1%}",
            f"{result.refused:,}",
            _seconds(result.ttft(0.5)),
            _seconds(result.ttft(0.99)),
            _seconds(result.worst_gap(0.99)),
            f"{result.kv_usage:.0%}",
            *([f"{result.fairness:.1%}"] if several else []),
        )
    grid.caption = "goodput: generated tokens of requests in SLO; refused ones are not; KV: mean usage"
    if several:
        grid.caption += "\nfair: what the worst flow was served, of what it was owed"
    return grid


def write_json(rows: Sequence[Row], settings: dict[str, Any], path: Path) -> None:
    """Write the figures and their origin."""
    path.write_text(json.dumps({"settings": settings, "rows": [row.as_json() for row in rows]}, indent=2) + "\n")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw goodput over load, and KV usage over time at the highest load.

    Raises:
        PlotError: matplotlib is not installed, or cannot write such a file.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - a second to load, and only here
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install 'kvgate[plots]'") from error
    figure = Figure(figsize=(11, 9), layout="constrained")
    goodput, usage = figure.subplots(2, 1)
    highest = max(row.load for row in rows)
    for name in dict.fromkeys(row.result.contender for row in rows):
        own = sorted((row for row in rows if row.result.contender == name), key=_load)
        loads, speeds = [row.load for row in own], [row.goodput_rate for row in own]
        if len(own) > 1:
            goodput.plot(loads, speeds, marker="o", label=name)
        else:
            goodput.bar_label(goodput.barh(name, speeds, label=name), fmt="%.0f", padding=3)
        times, usages = _smoothed(own[-1].result)
        usage.plot(times, usages, lw=1, label=name)
    if goodput.lines:
        goodput.set(xlabel="offered load (1 = capacity)", ylabel="tokens/s of requests in SLO", ylim=(0, None))
        goodput.legend()
    else:
        goodput.set(xlabel=f"tokens/s of requests in SLO, at load {highest:.2g}")
        goodput.invert_yaxis()
    usage.set(xlabel=f"seconds, at load {highest:.2g}", ylabel="KV usage", ylim=(0, 1.02))
    usage.legend(ncols=4, fontsize="small", loc="lower center")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path}: {error}") from error


def _smoothed(result: Result) -> tuple[list[float], list[float]]:
    """KV usage while requests arrive, averaged over samples until the line is readable."""
    samples = [sample for sample in result.samples if sample.at <= result.jobs[-1].request.arrival]
    size = max(1, len(samples) // POINTS)
    parts = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [part[0].at for part in parts], [sum(sample.kv_usage for sample in part) / len(part) for part in parts]


def _load(row: Row) -> float:
    return row.load


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.{2 if value < LONG else 0}f}"
