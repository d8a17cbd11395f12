"""Charts as SVG text: small, and at home in a page that loads nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from loadtests.figures import readable

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 44
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by colour-blind readers too."""
TICKS = 5
"""About so many on an axis."""
LEGEND_STEP = 84
"""Beside the title, from the right, where no line is."""


def line_chart(
    title: str, lines: Mapping[str, Points], x_label: str, y_label: str, *, log_x: bool = False, marks: bool = False
) -> str:
    """Lines over a common axis; a point that is not finite, or not positive on a logarithmic axis, is left out.

    Args:
        title: above the chart.
        lines: points by the name in the legend.
        x_label: what is drawn to the right, with its unit.
        y_label: what is drawn upwards, from 0 on.
        log_x: a logarithmic axis to the right.
        marks: a dot at each point.
    """
    kept = {name: [p for p in points if _drawable(p, log_x=log_x)] for name, points in lines.items()}
    points = [point for line in kept.values() for point in line]
    if not points:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "nothing was measured", "middle")])
    xs = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, log=log_x)
    ys = _Axis([0.0, *(y for _, y in points)], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(xs, ys, x_label, y_label)]
    for number, (name, line) in enumerate(kept.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{xs.at(x):.1f},{ys.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if marks:
            parts += [f'<circle cx="{xs.at(x):.1f}" cy="{ys.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        parts += _legend(number, name, colour)
    return _frame(title, parts)


def bar_chart(title: str, bars: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> str:
    """A bar for each row, of parts that add up; each part has its colour."""
    most = max((sum(parts.values()) for parts in bars.values()), default=0.0) or 1.0
    left, step = 150, (HEIGHT - TOP - BOTTOM) / max(1, len(bars))
    scale = (WIDTH - left - RIGHT) / most
    drawn: list[str] = []
    for row, (name, parts) in enumerate(bars.items()):
        y, x = TOP + row * step + step * 0.15, float(left)
        drawn.append(_text(left - 6, y + step * 0.35 + 4, name, "end"))
        for part, value in parts.items():
            width = value * scale
            tip = f"<title>{escape(part)}: {readable(value)}</title>"
            box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{step * 0.7:.1f}"'
            drawn.append(f'<rect {box} fill="{colours[part]}">{tip}</rect>')
            x += width
    for number, (part, colour) in enumerate(colours.items()):
        x = left + number * 95
        drawn.append(f'<rect x="{x}" y="{HEIGHT - 24}" width="10" height="10" fill="{colour}"/>')
        drawn.append(_text(x + 14, HEIGHT - 15, part, "start"))
    return _frame(title, drawn)


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
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    yield f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y_label)}</text>'


def _legend(number: int, name: str, colour: str) -> Iterable[str]:
    x = WIDTH - RIGHT - number * LEGEND_STEP
    yield f'<text x="{x}" y="18" text-anchor="end" style="fill:{colour};font-weight:600">{escape(name)}</text>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(title: str, parts: Iterable[str]) -> str:
    head = f'<text x="{LEFT}" y="18" class="title">{escape(title)}</text>'
    label = f'role="img" aria-label="{escape(title)}"'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {label}>{head}{"".join(parts)}</svg>'
