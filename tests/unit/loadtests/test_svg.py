import math
import re
from xml.etree import ElementTree as ET

import pytest

from loadtests.svg import HEIGHT, WIDTH, Limit, bar_chart, line_chart

COLOURS = {"a": "#0072b2", "b": "#d55e00"}


def polylines(svg: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in found]


def test_a_line_rises_to_the_right_where_its_values_do():
    svg = line_chart("t", {"a": [(0, 0), (1, 5), (2, 10)], "b": [(0, 3), (2, 3)]}, COLOURS, "x", "y")
    ET.fromstring(svg)  # noqa: S314 - our own text
    rising, flat = polylines(svg)
    assert [x for x, _ in rising] == sorted(x for x, _ in rising)
    assert [y for _, y in rising] == sorted((y for _, y in rising), reverse=True)
    assert len({y for _, y in flat}) == 1
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for line in (rising, flat) for x, y in line)


def test_decades_are_as_wide_as_each_other_on_a_logarithmic_axis():
    svg = line_chart("t", {"a": [(0.01, 0), (0.1, 0), (1, 1)]}, COLOURS, "x", "y", log_x=True)
    ((a, _), (b, _), (c, _)) = polylines(svg)[0]
    assert round(b - a) == round(c - b)


def test_what_cannot_be_drawn_is_left_out():
    points = [(0.0, 1.0), (1.0, math.nan), (1.0, 2.0), (math.inf, 1.0), (2.0, 3.0)]
    assert len(polylines(line_chart("t", {"a": points}, COLOURS, "x", "y", log_x=True))[0]) == 2


@pytest.mark.parametrize("points", [[], [(0, math.nan)], [(0, 0), (1, 0)]])
def test_a_chart_that_would_show_nothing_is_none(points):
    assert not line_chart("t", {"a": points}, COLOURS, "x", "y", limit=Limit(5, "SLO"))
    assert not bar_chart("t", {"a": {"good": 0}}, COLOURS, {"good": 1.0})


def test_a_line_without_points_is_not_in_the_legend():
    svg = line_chart("t", {"nobody": [], "a": [(0, 1)]}, {**COLOURS, "nobody": "#00f"}, "x", "y")
    assert "nobody" not in svg
    assert svg.count("<circle") == 1  # one point alone makes no line


def test_a_limit_is_drawn_where_it_is_also_beyond_every_point():
    svg = line_chart("t", {"a": [(0.01, 0), (0.1, 1)]}, COLOURS, "x", "y", log_x=True, limit=Limit(5, "SLO 5 s"))
    ((_, _), (last, _)) = polylines(svg)[0]
    limit = float(re.search(r'class="limit" x1="([\d.]+)"', svg)[1])
    assert last < limit < WIDTH
    assert ">SLO 5 s<" in svg


def test_names_cannot_break_the_page():
    svg = line_chart("a < b & c", {'"<x>"': [(1, 1)]}, {'"<x>"': "#f00"}, "x", "y")
    ET.fromstring(svg)  # noqa: S314 - our own text
    assert "<x>" not in svg


def test_the_parts_of_a_bar_add_up():
    svg = bar_chart("t", {"a": {"good": 30, "bad": 10}, "b": {"good": 20, "bad": 0}}, COLOURS, {"good": 1, "bad": 0.2})
    ET.fromstring(svg)  # noqa: S314 - our own text
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="\d+\.\d"', svg)]
    assert svg.count(COLOURS["a"]) == 3  # both of its parts, and the outline of the fainter
    assert round(widths[0] / widths[1]) == 3
    assert round(widths[0] / widths[2], 1) == 1.5
