"""The tables that `kvgate top --once` prints."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.commands.top.figures import (
    ENDPOINTS,
    FLOWS,
    GAP,
    REQUESTS,
    Column,
    Row,
    entries,
    fitting,
    headline,
    legend,
    model_line,
)
from gateway.ops.pictures.picture import Picture


def show(picture: Picture, out: Console) -> None:
    """Print all of it."""
    out.print(headline(picture))
    _table(ENDPOINTS, picture.endpoints, picture, out)
    out.print(legend())
    out.print()
    for model in picture.models:
        out.print(model_line(model))
    _table(FLOWS, entries(picture), picture, out)
    _table(REQUESTS, picture.requests, picture, out)


def _table(columns: Sequence[Column[Row]], rows: Iterable[Row], picture: Picture, out: Console) -> None:
    shown = fitting(columns, out.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, width in shown:
        table.add_column(Text(column.title), width=width, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(column.text(row, picture, width) for column, width in shown))
    if table.row_count:
        out.print()
        out.print(table)
