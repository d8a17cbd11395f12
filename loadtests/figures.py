"""Percentiles, medians and tables: the arithmetic of a report."""

import math
import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, interpolated; NaN without values."""
    return percentiles(values, (share,))[0]


def percentiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """The same for many shares of the same values."""
    ordered = sorted(values)
    return [_between(ordered, share) for share in shares]


def _between(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return float("nan")
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of every figure over the rounds that have it, in the order of the first round."""
    found = {name: [measured[name] for measured in rounds if name in measured] for name in rounds[0]}
    return {name: statistics.median(values) for name, values in found.items()}


def readable(value: float) -> str:
    """A figure with as many digits as it deserves."""
    if value != value:  # noqa: PLR0124 - NaN is the one value unlike itself
        return "-"
    if math.isinf(value):
        return "never"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print figures as rows and runs as columns. A missing figure is a dash."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows(columns):
        table.add_row(row, *(readable(column.get(row, math.nan)) for column in columns.values()))
    Console(width=120).print(table)


def rows(columns: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Every figure of any column, in the order of first appearance."""
    return list(dict.fromkeys(name for column in columns.values() for name in column))
