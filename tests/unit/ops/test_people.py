import re

import pytest
import structlog

from gateway.ops import people

REQUEST = {
    "path": "/v1/chat/completions",
    "model": "smol",
    "flow": "alice",
    "status": 200,
    "outcome": "completed",
    "endpoint": "127.0.0.1:8001",
    "fallback": None,
    "prompt_tokens": 12,
    "completion_tokens": 34,
    "queue_ms": 0.0,
    "ttft_ms": 31.25,
    "duration_ms": 512.5,
}
RED, YELLOW, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


def request(**fields):
    """A request's line without its time."""
    shown = people.request({**REQUEST, **fields}, width=None, colors=False)
    assert re.match(r"\d\d:\d\d:\d\d  ", shown)
    return shown[8:]


def happened(event, level="info", **fields):
    """A line about an event without its time."""
    line = {"event": event, "level": level, "timestamp": "2026Z", "logger": "kvgate.app", **fields}
    return people.happened(line, colors=False)[10:]


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({}, "  200     chat         12+34         31 ms    512 ms   smol, alice, 127.0.0.1:8001"),
        (
            {"status": 429, "outcome": "wait_too_long", "queue_ms": 1500.0},
            "  429     chat         12+34         31 ms    512 ms   wait_too_long, queued 1.5 s, smol, alice, ",
        ),
        ({"queue_ms": 99.9}, "512 ms   smol"),
        ({"queue_ms": 100.0}, "512 ms   queued 100 ms, smol"),
        ({"path": "/v1/completions", "ttft_ms": None}, "  200     completions  12+34         -        512 ms   smol"),
        ({"path": "/v1/embeddings", "completion_tokens": None}, "  200     embeddings   12+?          31 ms"),
        ({"prompt_tokens": None, "completion_tokens": None}, "chat                       31 ms"),
        ({"status": None, "outcome": "client_closed", "endpoint": None}, "  -       chat"),
        ({"fallback": "big"}, "smol, big, alice, "),
        ({"duration_ms": 61_234.0}, "31 ms    61.2 s   smol"),
    ],
)
def test_a_request_is_a_row_of_its_main_facts(fields, row):
    assert row in request(**fields)


def test_a_row_stands_under_its_columns():
    row = people.request(REQUEST, width=None, colors=False)
    for name, value in (
        ("status", "200"),
        ("request", "chat"),
        ("tokens", "12+34"),
        ("first", "31 ms"),
        ("all", "512 ms"),
        ("model", "smol"),
    ):
        assert people.HEADER.index(name) == row.index(value, 8), name


def test_a_request_is_as_wide_as_the_terminal():
    line = {**REQUEST, "status": 429, "outcome": "wait_too_long", "model": "m" * 200, "queue_ms": 1500.0}
    shown = [people.request(line, width=width, colors=False) for width in (60, 80, 200)]
    assert [len(each) for each in shown] == [60, 80, 200]
    assert "wait_too_long, queued 1.5 s, mmm" in shown[-1]


@pytest.mark.parametrize(("status", "color"), [(200, ""), (404, YELLOW), (499, YELLOW), (502, RED), (None, RED)])
def test_a_request_that_failed_is_colored_by_whose_fault_it_is(status, color):
    shown = people.request({**REQUEST, "status": status}, width=None, colors=True)
    assert (RED in shown, YELLOW in shown) == (color == RED, color == YELLOW)
    assert shown.endswith(PLAIN) is bool(color)


@pytest.mark.parametrize(
    ("event", "fields", "said"),
    [
        ("listening", {"version": "0.1.0", "port": 8080}, "kvgate 0.1.0 listens on port 8080"),
        ("listening", {"version": "0.1.0", "socket": "unix:/run/k.sock"}, "kvgate 0.1.0 listens on unix:/run/k.sock"),
        ("endpoint changed", {"endpoint": "h:1", "was": "up", "state": "down", "reason": "gone"},
         "endpoint h:1 is down: gone"),
        ("endpoint is still not healthy", {"endpoint": "h:1", "state": "starting", "reason": "nobody listens"},
         "endpoint h:1 is still starting: nobody listens"),
        ("endpoint is still not healthy", {"endpoint": "h:1", "state": "down", "reason": "it is a kvgate",
                                           "help": "Give the URL of the vLLM itself."},
         "endpoint h:1 is still down: it is a kvgate\n          Give the URL of the vLLM itself."),
        ("stopping", {"active": 0, "at_most": 120.0}, "stopping"),
        ("stopping", {"active": 1, "at_most": 120.0},
         "stopping: waits for 1 request, at most 120 s; Ctrl-C again ends it now"),
        ("stopping", {"active": 2, "at_most": 0.5},
         "stopping: waits for 2 requests, at most 0.5 s; Ctrl-C again ends it now"),
        ("prompts are counted as the endpoint counts them", {"endpoint": "h:1"},
         "endpoint h:1 counts prompts as kvgate does"),
        ("a gate closed", {"model": "m", "usage": 0.91, "of": ["a", "b"]},
         "a gate closed (model m, usage 0.91, of a b)"),
        ("settings reread", {}, "settings reread"),
    ],
)  # fmt: skip
def test_people_read_sentences(event, fields, said):
    assert happened(event, **fields) == said


def test_the_end_of_a_process_is_left_to_the_shell():
    with pytest.raises(structlog.DropEvent):
        happened("stopped")


def test_what_went_wrong_says_so_and_its_traceback_follows():
    assert happened("it broke", "warning") == "warning: it broke"
    shown = happened("it broke", "error", model="m", exception="Traceback:\n  here\nValueError: x")
    assert shown.splitlines() == [
        "error: it broke (model m)",
        "          Traceback:",
        "            here",
        "          ValueError: x",
    ]
    colored = people.happened({"event": "it broke", "level": "error"}, colors=True)
    assert f"{RED}error:{PLAIN} it broke" in colored


def test_a_terminal_is_not_sent_what_it_would_obey():
    assert happened("endpoint changed", endpoint="h", state="down", reason="said \x1b[2Jx\u202e\nand\x07 more") == (
        "endpoint h is down: said \ufffd[2Jx\ufffd\n          and\ufffd more"
    )
    assert happened("odd", name="\x1b[31m") == "odd (name \ufffd[31m)"
