"""Percentiles, medians and tables: the arithmetic of a report."""

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, interpolated; NaN of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of every figure over the rounds, in the order of the first."""
    return {name: statistics.median(measured[name] for measured in rounds) for name in rounds[0]}


def readable(value: float) -> str:
    """A figure with as many digits as it deserves."""
    if value != value:  # noqa: PLR0124 - NaN is the one value unlike itself
        return "-"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print figures as rows and runs as columns, as wide as they are."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in next(iter(columns.values())):
        table.add_row(row, *(readable(column[row]) for column in columns.values()))
    Console(width=120).print(table)
