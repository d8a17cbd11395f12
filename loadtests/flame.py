"""A flame graph as SVG: stacks side by side, a frame as wide as what was spent in it. The pointer shows how much."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from loadtests.figures import readable

WIDTH, ROW = 1200, 17
NARROWEST = 0.5
"""A frame narrower than this is left out; in pixels."""
_LETTER = 6.2
"""Width of a letter, in pixels."""
_HUES = 40
"""Degrees of hue over which the colours of functions spread, from red to yellow."""


@dataclass(slots=True)
class _Node:
    spent: float = 0.0
    below: dict[str, "_Node"] = field(default_factory=dict)


def flame_graph(stacks: Mapping[tuple[str, ...], float], unit: str = "us") -> str:
    """The graph of stacks, outermost frame first, with what was spent in each."""
    root = _Node()
    for stack, spent in stacks.items():
        node = root
        node.spent += spent
        for frame in stack:
            node = node.below.setdefault(frame, _Node())
            node.spent += spent
    if not root.spent:
        return ""
    boxes = list(_boxes("all", root, 0.0, 0, WIDTH / root.spent))
    height = ROW * (1 + max(depth for _, _, _, depth, _ in boxes))
    drawn = "".join(_drawn(*box, height=height, whole=root.spent, unit=unit) for box in boxes)
    style = "text{font:11px monospace;pointer-events:none}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{style}</style>{drawn}</svg>'


def _boxes(
    name: str, node: _Node, x: float, depth: int, scale: float
) -> Iterator[tuple[str, float, float, int, float]]:
    """The frame and all inside it: name, left edge, width, depth, and what was spent."""
    yield name, x, node.spent * scale, depth, node.spent
    for inner, below in sorted(node.below.items()):
        if below.spent * scale >= NARROWEST:
            yield from _boxes(inner, below, x, depth + 1, scale)
        x += below.spent * scale


def _drawn(name: str, x: float, width: float, depth: int, spent: float, *, height: int, whole: float, unit: str) -> str:
    y = height - ROW * (depth + 1)
    hue = sum(map(ord, name)) % _HUES
    tip = f"<title>{escape(name)}: {readable(spent)} {unit}, {spent / whole:.1%}</title>"
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" fill="hsl({hue} 80% 65%)">{tip}</rect>'
    short = name.rpartition(":")[2][: int((width - 4) / _LETTER)]
    return f'{box}<text x="{x + 2:.1f}" y="{y + ROW - 5}">{escape(short)}</text>' if len(short) > 1 else box
