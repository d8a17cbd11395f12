import pytest
from rich.text import Text

from gateway.commands.top.figures import (
    ENDPOINTS,
    FLOWS,
    GAP,
    REQUESTS,
    Entry,
    bar,
    cells_of,
    duration,
    entries,
    fitting,
    headline,
    model_line,
    ordered,
    usage_lately,
)
from gateway.ops.pictures.picture import Flow, Gauge, Point, Quantiles, Sign, Split
from tests.unit.ops.pictures.pictures import endpoint, model, picture, request

SPLIT = Split(running=0.4, shared=0.1, foreign=0.05, promised=0.15, free=0.3)


def column(columns, title):
    return next(each for each in columns if each.title == title)


def cell(columns, title, row, seen=None):
    chosen = column(columns, title)
    return chosen.text(row, seen or picture(), chosen.width).plain


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0004, "0 ms"), (0.42, "420 ms"), (3.14, "3.1 s"), (119, "119 s"), (180, "3 min"), (7300, "2 h"), (2e5, "2 d")],
)
def test_a_duration_is_short(seconds, shown):
    assert duration(seconds) == shown
    assert len(shown) <= 6


def test_the_parts_of_a_bar_fill_it_and_have_characters_of_their_own():
    shown = bar(endpoint(split=SPLIT), picture(), 40).plain
    assert shown == "█" * 16 + "▓" * 4 + "▒" * 2 + "░" * 6 + "·" * 4 + "┆" + "·" * 3 + "│" + "·" * 3
    assert bar(endpoint(), picture(), 40).plain == "size not known"


@pytest.mark.parametrize("width", [1, 7, 14, 80])
def test_a_forecast_beyond_the_cache_ends_with_the_bar(width):
    beyond = Split(running=0.7, shared=0.0, foreign=0.0, promised=0.8, free=0.0)
    for split in (SPLIT, beyond):
        cells = cells_of(split, width)
        assert sum(cells) == width
        assert min(cells) >= 0
        assert len(bar(endpoint(split=split), picture(), width).plain) == width


@pytest.mark.parametrize("columns", [ENDPOINTS, FLOWS, REQUESTS])
@pytest.mark.parametrize("width", [78, 98, 130, 200])
def test_the_columns_fill_the_terminal_and_no_more(columns, width):
    shown = fitting(columns, width)
    assert sum(size + GAP for _, size in shown) == width
    assert sum(each.grows for each in columns) == 1


def test_what_is_not_known_is_no_figure_and_comes_last():
    rows = [request("1"), request("2", generated=7), request("3", generated=9)]
    out = column(REQUESTS, "out")
    assert [row.key for row in ordered(rows, out)] == ["3", "2", "1"]
    assert [row.key for row in ordered(rows, None)] == ["1", "2", "3"]
    assert cell(REQUESTS, "out", rows[0]) == "-"
    assert cell(REQUESTS, "out", request("4", generated=7, expected=1200)) == "7/1,200"


def test_the_headline_says_what_is_wrong_since_when_and_what_to_do():
    first = Sign(key="a", level="bad", text="Not serving.", do="Look.", since=820.0)
    seen = picture(headline=first, signs=(first, Sign(key="b", level="warn", text="Late.")))
    assert headline(seen).plain == "■ Not serving. For 3 min. Look.\n▲ Late."


def test_control_characters_of_a_client_do_not_reach_the_terminal():
    evil = "\x1b[2Jflow"
    shown = [
        cell(REQUESTS, "flow", request("1", flow=evil)),
        cell(FLOWS, "flow", entries(picture(models=(model(flows=(Flow(band=0, flow=evil, weight=1.0),)),)))[0]),
        cell(ENDPOINTS, "endpoint", endpoint(evil)),
        headline(picture(headline=Sign(key="a", level="warn", text=evil, do=evil))).plain,
        model_line(model(evil)).plain,
    ]
    assert all("\x1b" not in text and "flow" in text for text in shown)


def test_a_flow_of_which_nothing_waits_has_no_band():
    assert [cell(FLOWS, "band", Entry("m", Flow(flow="a", weight=1.0, band=band))) for band in (0, None)] == ["0", "-"]


def test_a_model_has_its_times_beside_the_target_and_what_became_of_its_requests():
    seen = model(waiting=3, ttft=Quantiles(count=9, p50=0.2, p99=6.0), outcomes={"queue_full": 2, "completed": 1200})
    line = model_line(seen).plain
    assert line == (
        "m: 3 waiting; first token p50 200 ms p99 6.0 s (target 5.0 s); in 5 min 1,200 completed, 2 queue_full"
    )


def test_a_model_without_an_answer_yet_has_no_times():
    assert model_line(model(ttft=Quantiles(count=0), gap=Quantiles(count=0))).plain == "m: nothing waits"


def test_a_request_that_waits_has_waited_until_now():
    assert cell(REQUESTS, "waited", request("1", phase="waiting")) == "10 s"
    assert cell(REQUESTS, "end", request("1", ends=1003.0)) == "+3.0 s"
    assert cell(REQUESTS, "end", request("1", ends=990.0)) == "late"
    assert cell(REQUESTS, "end", request("1", phase="ended", ends=940.0)) == "-60 s"
    assert cell(REQUESTS, "request", request("1", phase="ended", outcome="queue_full")) == "queue_full"


def test_the_last_15_minutes_have_one_character_for_each_span():
    def point(usage):
        return Point(0.0, {}, {"a:1": Gauge(usage, None, 0, True, None, None, 0)}, {})

    seen = picture(points=tuple(point(usage) for usage in (0.0, 0.0, 0.5, 0.5, 1.0, 1.0)))
    assert usage_lately(seen, "a:1", 3).plain == "▁▅█"
    assert usage_lately(seen, "b:1", 3).plain == "   "


def test_an_endpoint_with_a_closed_gate_and_one_that_is_down_say_so():
    assert cell(ENDPOINTS, "state", endpoint(gate_open=False)) == "gate shut"
    assert cell(ENDPOINTS, "state", endpoint(healthy=False, state="down")) == "down"
    assert cell(ENDPOINTS, "running", endpoint(sequences=12, sequence_limit=256)) == "12/256"
    assert isinstance(column(ENDPOINTS, "used").text(endpoint(usage=0.95), picture(), 5), Text)
