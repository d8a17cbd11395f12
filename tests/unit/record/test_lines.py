from typing import get_args

import pytest

from gateway.admission.commands import Dispatch, Reject, WakeAt
from gateway.admission.events import (
    Arrived,
    Back,
    Behind,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointGone,
    EndpointUp,
    Event,
    Expected,
    Finished,
    Learned,
    Observed,
    Outputs,
    PolicyChanged,
    Progress,
    Promised,
    Returned,
    ShutdownStarted,
    Tick,
    Verdict,
    Warmth,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Band, Mode, Policy
from gateway.record.lines import Dropped, EventLogError, Happened, Opened, Started, encode, happened, read

EVERY = (
    Arrived(1, Demand((5, 6), 7, 2, 13, 14), 3, "a", 99, False, True, 1.5, ((64, 2**64 - 1), (128, 3))),
    Declared(Arrived(1, Demand((5,), 7), waited=1.5, failures=1, avoid="f", holder="e"), "e", 3, behind=True),
    Cancelled(1),
    Progress(((1, 2), (3, 4))),
    Behind(1),
    Finished(1, Verdict.ABORTED, None),
    Returned(1, Back.BUSY),
    EndpointUp("e", Capacity(100, None, 32, 5, shares_prefix=False)),
    EndpointDown("e", "why"),
    EndpointGone("e"),
    Observed("e", 1.0000000000000002, 0.1, None, 3, 4e18, None),
    Warmth((5.0, 2.0), ((0, "a", 7.5),), (Promised(2**64 - 1, 1, "a", -3, Outcome.QUEUE_FULL, 1, 2, 3, (4, 5)),), 0.5),
    Expected(7.5, failed=True),
    Learned((1, None), (Outputs(9, 11, True, False, (3, None)),)),
    PolicyChanged(Policy(Mode.OBSERVE, ttft_target=None, bands={2: Band(9.0, 0.1)}, weights={"a": 2.0})),
    ShutdownStarted(),
    Tick(),
)
START = Started("0.1", {"kv_high": 0.9}, {"a": 2.0}, 1.0)


def written(tmp_path, *lines):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"".join(line if isinstance(line, bytes) else encode(line) for line in lines))
    return file


def fault(file):
    with pytest.raises(EventLogError) as refused:
        list(read(file))
    return str(refused.value)


def test_every_event_is_read_as_it_was_written(tmp_path):
    assert {type(event) for event in EVERY} == set(get_args(Event)), "one of each"
    file = written(tmp_path, START, *(happened(0.1 * n, 1, event, []) for n, event in enumerate(EVERY)))
    start, *lines = read(file)
    assert start == START
    assert [line.read() for line in lines] == list(EVERY)
    assert [line.at for line in lines] == [0.1 * n for n in range(len(EVERY))], "to the last bit"


def test_decisions_are_kept_and_requests_to_be_woken_are_not(tmp_path):
    commands = [Dispatch(1, "e"), WakeAt(5.0), Reject(2, Outcome.QUEUE_FULL, 1.25)]
    _, line = read(written(tmp_path, START, happened(0, 1, Tick(), commands)))
    assert line.decisions == [
        {"request": 1, "endpoint": "e", "would": None},
        {"request": 2, "outcome": "queue_full", "retry_after": 1.25},
    ]


def test_a_line_torn_when_a_gateway_was_killed_is_passed_over(tmp_path):
    half = encode(Opened(1, "m"))[:9]
    lines = [START, Opened(1, "m"), half + b"\n", START, Dropped(2), half]
    assert list(read(written(tmp_path, *lines))) == [START, Opened(1, "m"), START, Dropped(2)]


def test_a_line_torn_elsewhere_is_a_fault(tmp_path):
    assert "line 2" in fault(written(tmp_path, START, b'{"line":\n', Opened(1, "m")))


@pytest.mark.parametrize("text", [b"hello\n", b"[]\n", b"\xff\n", b'{"line":"other"}\n'])
def test_a_file_that_is_no_event_log_is_named(tmp_path, text):
    assert "line 1: this is no event log" in fault(written(tmp_path, text))


def test_a_file_without_its_beginning_is_refused(tmp_path):
    assert "beginning is missing" in fault(written(tmp_path, Opened(1, "m")))


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "No such file" in fault(tmp_path / "none")


@pytest.mark.parametrize("line", [Happened(0, 1, "Unheard", {}), Happened(0, 1, "Finished", {"request": "x"})])
def test_an_event_of_another_version_is_named(line):
    with pytest.raises(EventLogError, match=line.event):
        line.read()
