import re
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace as replaced

from loadtests.page import STYLE, render
from loadtests.palette import colours
from loadtests.scenario import Slo
from tests.unit.loadtests.test_results import SCENARIO, document, measured

TARGETS = ("direct", "limited", "kvgate", "<watermark>")
NOTHING = {"KV": [0.0, 0.0], "preemptions": [float("nan")] * 2}
SERIES = {"KV": [0.5, 0.9], "queued in kvgate": [0.0, 3.0]}


def runs(*loads: float, series=SERIES, targets=TARGETS):
    found = [measured(target, load, 0) for load in loads for target in targets]
    return [replace(run, times=[0.0, 1.0], series=series) for run in found]


class Elements(HTMLParser):
    """Every element of a page, and each chart by its title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


def charts(page: str) -> dict[str, str]:
    found = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    return {re.findall(r"<b>(.*?)</b>", chart)[0]: chart for chart in found}


def test_the_page_shows_every_target_and_verdict():
    page = render(document(*runs(0.5, 2.0)))
    for text in (
        "Outcomes of requests",
        "Goodput: SLO requests/s",
        "Time to first token",
        "Gaps between tokens",
        "Worst gap of each answer",
        "KV cache in use",
        "Queued in kvgate over time",
        "Verdict on",
        "status 429 wait_too_long",
        "abc",
        "load 2 of 3 requests per second",
        "&lt;watermark&gt;",
    ):
        assert text in page, text
    assert "<watermark>" not in page


def test_the_page_loads_nothing():
    page = render(document(*runs(0.5, 2.0)))
    for tag, attributes in Elements(page).elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
        assert not {"src", "href", "xlink:href", "action", "style", "onload"} & set(attributes), tag
    assert not re.search(r"url\(|@import", page)


def test_one_load_has_no_curve_over_loads():
    assert "Goodput: SLO requests/s" not in render(document(measured("kvgate", 1.0, 0)))


def test_a_target_has_one_colour_in_every_chart_and_table_and_no_other_thing_has_it():
    page = render(document(*runs(0.5, 2.0)))
    named = defaultdict(set)
    for colour, name in re.findall(
        r'<svg class="swatch"[^>]*><rect[^>]*? fill="([^"]*)"[^>]*></svg>(.*?)</span>', page
    ):
        named[name].add(colour)
    palette = colours(TARGETS)
    assert {name: named[name.replace("<", "&lt;").replace(">", "&gt;")] for name in TARGETS} == {
        name: {colour} for name, colour in palette.items()
    }
    assert {name for name, found in named.items() if found & set(palette.values())} == {
        name.replace("<", "&lt;").replace(">", "&gt;") for name in TARGETS
    }
    assert set(re.findall(r'polyline[^>]*stroke="([^"]*)"', page)) == set(palette.values())
    median = page[page.index("median of the rounds") :]
    assert all(palette[name] in median[: median.index("</tr>")] for name in TARGETS)


def test_a_target_that_is_missing_in_one_chart_leaves_the_others_their_colours():
    some = runs(1.0)
    some[0] = replace(some[0], series={}, times=[])
    drawn = charts(render(document(*some)))
    assert colours(TARGETS)["direct"] not in drawn["KV cache in use"]
    assert colours(TARGETS)["kvgate"] in drawn["KV cache in use"]


def test_the_top_tells_when_what_was_loaded_at_what_rate_and_which_slo():
    told = {"measured_at": "2026-11-22T01:17:35+00:00", "commit": "fd0cf54ce0da", "cpu": "AMD EPYC", "cores": 2}
    page = render(replace(document(*runs(2.0)), provenance=told))
    top = page[: page.index("<figure>")]
    for text in (
        "long-outputs",
        "2026-11-22 01:17 UTC, commit fd0cf54ce0da",
        "http://127.0.0.1:1/kvgate, model random",
        "http://127.0.0.1:1/direct, model random",
        "6 requests/s for 10 s",
        "first token within 5 s of the arrival, no gap over 0.5 s",
        "AMD EPYC, 2 cores",
    ):
        assert text in top, text


@pytest.mark.parametrize(
    ("title", "limit"),
    [
        ("Time to first token", "SLO 2.5 s"),
        ("Gaps between tokens", "SLO 0.25 s"),
        ("Worst gap of each answer", "SLO 0.25 s"),
    ],
)
def test_the_slo_is_a_line_in_the_charts_it_is_about_and_in_no_other(title, limit):
    slow = replace(document(*runs(1.0)), scenario=replaced(SCENARIO, slo=Slo(ttft=2.5, gap=0.25)))
    drawn = charts(render(slow))
    assert drawn[title].count('class="limit"') == 1
    assert f">{limit}<" in drawn[title]
    assert {name for name, chart in drawn.items() if 'class="limit"' in chart} == {
        "Time to first token",
        "Gaps between tokens",
        "Worst gap of each answer",
    }


def test_a_chart_with_nothing_in_it_is_left_out():
    refused = [
        replace(run, distributions={"TTFT": [], "ITL": [], "worst gap": []}) for run in runs(1.0, series=NOTHING)
    ]
    refused = [replace(run, served_by_second=[0, 0], tokens_by_second=[]) for run in refused]
    assert set(charts(render(document(*refused)))) == {"Outcomes of requests"}


def test_a_small_screen_and_the_night_are_provided_for():
    page = render(document(*runs(1.0)))
    assert '<meta name="viewport" content="width=device-width">' in page
    assert "@media (prefers-color-scheme: dark)" in page
    assert set(re.findall(r"(?:color|stroke|fill|background): (#\w+)", STYLE)) == set()
    assert "minmax(min(" in page
