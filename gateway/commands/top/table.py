"""A table of figures that is written anew twice a second: only the rows on the screen are made into text."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gateway.commands.top.figures import GAP, Column, Row, fitting, ordered
from gateway.ops.pictures.picture import Picture

_HEADER = 1
"""Lines above the rows."""


class Figures(ScrollView, Generic[Row], can_focus=True):
    """The rows of a picture below their titles; its cursor and its place stay while pictures come.

    Args:
        columns: of which those are shown that fit.
        key: tells a row of one picture in the next.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"figures--header", "figures--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "Next table"),
        Binding("up", "go(-1)", show=False),
        Binding("down", "go(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,ctrl+home", "go(-1_000_000)", show=False),
        Binding("end,ctrl+end", "go(1_000_000)", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Row]], key: Callable[[Row], Hashable], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._all, self._key = columns, key
        self._by: Column[Row] | None = None
        self._shown: list[tuple[Column[Row], int]] = []
        self._rows: list[Row] = []
        self._picture: Picture | None = None
        self._cursor = 0

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    def sort_by_next(self) -> None:
        """Sort by the column after the present one; after the last, as rows come."""
        columns = [None, *(column for column, _ in self._shown)]
        self._by = columns[(columns.index(self._by) + 1) % len(columns)] if self._by in columns else None
        self._rows = []  # the cursor goes to the first

    def write(self, rows: Iterable[Row], picture: Picture, width: int) -> None:
        """Show these rows in a terminal of this width; the cursor stays on its row."""
        before = None if self.chosen is None else self._key(self.chosen)
        self._picture, self._rows = picture, ordered(rows, self._by)
        self._shown = fitting(self._all, width - GAP)
        keys = [self._key(row) for row in self._rows]
        self._cursor = keys.index(before) if before in keys else 0
        self.virtual_size = Size(sum(size + GAP for _, size in self._shown), _HEADER + len(self._rows))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        number = y - _HEADER + self.scroll_offset.y
        if y < _HEADER:
            style, cells = "figures--header", [_heading(*each, sorts=each[0] is self._by) for each in self._shown]
        elif self._picture is not None and number < len(self._rows):
            style, row, picture = "figures--cursor" * (number == self._cursor), self._rows[number], self._picture
            cells = [_cell(column.text(row, picture, size), column, size) for column, size in self._shown]
        else:
            return Strip.blank(self.size.width, self.rich_style)
        line: list[Segment] = [segment for cell in cells for segment in cell.render(self.app.console)]
        strip = Strip(line).adjust_cell_length(self.size.width)
        return strip.apply_style(self.get_component_rich_style(style) if style else self.rich_style)

    def action_go(self, rows: int) -> None:
        """Move the cursor by so many rows, and show where it is."""
        self._cursor = max(0, min(len(self._rows) - 1, self._cursor + rows))
        seen, top = self.size.height - _HEADER, self.scroll_offset.y
        self.scroll_to(y=min(max(top, self._cursor - seen + 1), self._cursor), animate=False)
        self.refresh()

    def action_page(self, pages: int) -> None:
        """Move the cursor by so many screens."""
        self.action_go(pages * max(1, self.size.height - _HEADER))

    def on_click(self, event: Click) -> None:
        """Move the cursor to the row that was clicked."""
        number = event.y - _HEADER + self.scroll_offset.y
        if event.y >= _HEADER and number < len(self._rows):
            self.action_go(number - self._cursor)


def _heading(column: Column[Row], size: int, *, sorts: bool) -> Text:
    if not sorts:
        return _cell(Text(column.title), column, size)
    mark, style = "▾" if column.down else "▴", Style(reverse=True)
    if not column.right:
        return _cell(Text(column.title + mark, style), column, size)
    text = _cell(Text(column.title, style), column, size)
    return Text.assemble(text[:size], (mark, style), text[size + 1 :])  # in the gap: some titles fill their column


def _cell(text: Text, column: Column[Row], size: int) -> Text:
    text.end = ""
    text.truncate(size, overflow="ellipsis")
    text.align("right" if column.right else "left", size)
    text.pad_right(GAP)
    return text
