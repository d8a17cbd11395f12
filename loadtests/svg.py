"""Charts as SVG text: small, and fit for a page that loads nothing.

They take the page's font and its light or dark colours, and a bar shows its value under the pointer. matplotlib's SVG
would do neither.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from loadtests.figures import readable

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 20, 40
TICKS = 5
"""About this many ticks on an axis."""
ROW, BAR = 38, 16
"""Height of a bar with its name above it, and of the bar alone."""
FAINT = 0.5
"""A part of a bar fainter than this gets an outline, so that an empty one is visible."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A value on the horizontal axis to compare lines with."""

    at: float
    label: str


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    colours: Mapping[str, str],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    marks: bool = False,
    limit: Limit | None = None,
) -> str:
    """Lines over a common axis. A point that is not finite, or not positive on a logarithmic axis, is left out.

    Args:
        title: above the chart.
        lines: points by the name in the legend. A line without points is not in the legend.
        colours: of the lines, by name.
        x_label: the horizontal quantity, with its unit.
        y_label: the vertical quantity, from 0 on.
        log_x: whether the horizontal axis is logarithmic.
        marks: a dot at each point.
        limit: drawn as a vertical line.

    Returns:
        The chart; empty if there is nothing to see: no point, or all of them at 0.
    """
    kept = {name: [p for p in points if _drawable(p, log_x=log_x)] for name, points in lines.items()}
    kept = {name: points for name, points in kept.items() if points}
    points = [point for line in kept.values() for point in line]
    if not any(y for _, y in points):
        return ""
    xs = _Axis([*(x for x, _ in points), *([limit.at] if limit else [])], LEFT, WIDTH - RIGHT, log=log_x)
    ys = _Axis([0.0, *(y for _, y in points)], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(xs, ys, x_label, y_label)]
    for name, line in kept.items():
        colour = colours[name]
        path = " ".join(f"{xs.at(x):.1f},{ys.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if marks or len(line) == 1:
            parts += [f'<circle cx="{xs.at(x):.1f}" cy="{ys.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
    if limit is not None:
        parts += _limit(xs.at(limit.at), limit.label)
    return _figure(title, (swatch(name, colours[name]) for name in kept), parts, HEIGHT)


def bar_chart(
    title: str, bars: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], strengths: Mapping[str, float]
) -> str:
    """A stacked bar for each row. A row has a colour, and a part its strength of that colour, 0 to 1."""
    most = max((sum(parts.values()) for parts in bars.values()), default=0.0)
    if not most:
        return ""
    scale = (WIDTH - 2 * RIGHT) / most
    drawn: list[str] = []
    for row, (name, parts) in enumerate(bars.items()):
        y, x = row * ROW + 4, float(RIGHT)
        drawn.append(_text(RIGHT, y + 10, name, "start"))
        for part, value in parts.items():
            width = value * scale
            tip = f"<title>{escape(part)}: {readable(value)}</title>"
            box = f'x="{x:.1f}" y="{y + 15}" width="{width:.1f}" height="{BAR:.1f}"'
            drawn.append(f"<rect {box} {_shade(colours[name], strengths[part])}>{tip}</rect>")
            x += width
    return _figure(title, map(_shade_swatch, strengths, strengths.values()), drawn, len(bars) * ROW + 4)


def swatch(name: str, colour: str) -> str:
    """A name beside its colour, as HTML."""
    return _named(name, f'fill="{colour}"')


def _shade_swatch(name: str, strength: float) -> str:
    return _named(name, _shade("currentColor", strength))


def _named(name: str, look: str) -> str:
    box = f'<svg class="swatch" viewBox="0 0 12 12"><rect x="1" y="1" width="10" height="10" {look}/></svg>'
    return f'<span class="subject">{box}{escape(name)}</span>'


def _shade(colour: str, strength: float) -> str:
    outline = f' stroke="{colour}" stroke-dasharray="3 2"' if strength < FAINT else ""
    return f'fill="{colour}" fill-opacity="{strength:g}"{outline}'


class _Axis:
    def __init__(self, values: Iterable[float], start: float, end: float, *, log: bool = False) -> None:
        known = list(values)
        self._log = log
        low, high = self._of(min(known)), self._of(max(known))
        if log:
            low, high = math.floor(low), math.ceil(high)
        self._low, self._high = low, high if high > low else low + 1.0
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (self._of(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    @property
    def ticks(self) -> list[float]:
        if self._log:
            return [10.0**power for power in range(int(self._low), int(self._high) + 1)]
        rough = (self._high - self._low) / TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        first = math.ceil(self._low / step)
        return [number * step for number in range(first, math.floor(self._high / step) + 1)]

    def _of(self, value: float) -> float:
        return math.log10(value) if self._log else value


def _drawable(point: tuple[float, float], *, log_x: bool) -> bool:
    return all(map(math.isfinite, point)) and (point[0] > 0 or not log_x)


def _grid(xs: _Axis, ys: _Axis, x_label: str, y_label: str) -> Iterable[str]:
    for tick in xs.ticks:
        x = xs.at(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text(x, HEIGHT - BOTTOM + 14, f"{tick:g}", "middle")
    for tick in ys.ticks:
        y = ys.at(tick)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, f"{tick:g}", "end")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    yield f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y_label)}</text>'


def _limit(x: float, label: str) -> Iterable[str]:
    yield f'<line class="limit" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
    yield _text(x, TOP - 6, label, "end" if x > WIDTH - 4 * RIGHT else "middle")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(title: str, legend: Iterable[str], parts: Iterable[str], height: int) -> str:
    """A chart with its legend as text outside of the drawing, where long names wrap."""
    label = f'role="img" aria-label="{escape(title)}"'
    drawn = f'<svg viewBox="0 0 {WIDTH} {height}" {label}>{"".join(parts)}</svg>'
    return f"<figure><figcaption><b>{escape(title)}</b> {' '.join(legend)}</figcaption>{drawn}</figure>"
