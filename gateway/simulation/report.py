"""Comparisons as a table, as JSON and as a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from gateway.simulation.compare import Row


class PlotError(Exception):
    """A picture that cannot be drawn; the message says why."""


def table(rows: Sequence[Row], title: str) -> Table:
    """One row for each contender."""
    columns = ("", "preempted", "", "tok/s", "in SLO", "tokens in SLO", "of oracle's", "refused")
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("")
    for name in (*columns[1:], "TTFT p50", "p99", "gap p99", "KV"):
        grid.add_column(name, justify="right")
    for row in rows:
        result, slo = row.result, row.slo
        grid.add_row(
            result.contender,
            f"{result.preemptions:,}",
            f"{result.preemption_rate:.2%}",
            f"{result.throughput:,.0f}",
            f"{result.in_slo(slo):.1%}",
            f"{result.goodput(slo):,}",
            f"{row.relative:.1%}",
            f"{result.refused:,}",
            _seconds(result.ttft(0.5)),
            _seconds(result.ttft(0.99)),
            _seconds(result.worst_gap(0.99)),
            f"{result.kv_usage:.0%}",
        )
    return grid


def write_json(rows: Sequence[Row], settings: dict[str, Any], path: Path) -> None:
    """Write the figures, and what they are of."""
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
    figure = Figure(figsize=(11, 8), layout="constrained")
    goodput, usage = figure.subplots(2, 1)
    highest = max(row.load for row in rows)
    for name in dict.fromkeys(row.result.contender for row in rows):
        own = sorted((row for row in rows if row.result.contender == name), key=_load)
        speeds = [row.result.goodput(row.slo) / row.result.jobs[-1].request.arrival for row in own]
        goodput.plot([row.load for row in own], speeds, marker="o", label=name)
        samples = next(row for row in own if row.load == highest).result.samples
        usage.plot([sample.at for sample in samples], [sample.kv_usage for sample in samples], lw=0.8, label=name)
    goodput.set(xlabel="offered load (1 = capacity)", ylabel="tokens/s of requests in SLO", ylim=(0, None))
    goodput.legend()
    usage.set(xlabel=f"seconds, at load {highest:g}", ylabel="KV usage", ylim=(0, 1.02))
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path}: {error}") from error


def _load(row: Row) -> float:
    return row.load


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
