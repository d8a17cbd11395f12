import re
from dataclasses import replace

from loadtests.page import render
from tests.unit.loadtests.test_results import document, measured


def test_the_page_shows_every_target_and_loads_nothing():
    runs = [measured(target, load, 0) for load in (0.5, 2.0) for target in ("direct", "kvgate", "<watermark>")]
    series = {"KV": [0.5, 0.9], "queued in kvgate": [0.0, 3.0]}
    runs = [replace(run, times=[0.0, 1.0], series=series) for run in runs]
    page = render(document(*runs))
    for text in (
        "Outcomes of requests",
        "Goodput: SLO requests/s",
        "Time to first token",
        "Gaps between tokens",
        "Worst gap of each answer",
        "KV cache in use",
        "Queued in kvgate over time",
        "Verdict on kvgate",
        "status 429 wait_too_long",
        "abc",
        "load 2 of 3 requests per second",
        "&lt;watermark&gt;",
    ):
        assert text in page, text
    assert "<watermark>" not in page
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", page)


def test_one_load_has_no_curve_over_loads():
    assert "Goodput: SLO requests/s" not in render(document(measured("kvgate", 1.0, 0)))
