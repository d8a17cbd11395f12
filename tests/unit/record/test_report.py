import io

from rich.console import Console

from gateway.admission.events import Arrived, Capacity, Demand, EndpointUp, Finished, Tick, Verdict
from gateway.record.lines import Dropped, encode
from gateway.record.replay import verify
from gateway.record.report import show, show_compared
from gateway.record.whatif import compare
from tests.unit.record.recorded import Tape


def printed(show_it, *arguments):
    out = io.StringIO()
    show_it(*arguments, Console(file=out, width=100, highlight=False, markup=False))
    return out.getvalue()


def tape():
    tape = Tape(ttft_target=None, queue={"max_requests": 0})
    tape.tell(0, EndpointUp("e", Capacity(1000, 100, max_num_seqs=1)))
    tape.tell(1, Arrived(1, Demand((10,), 100))).tell(2.5, Arrived(2, Demand((10,), 100)))
    return tape.tell(5, Finished(1, Verdict.DONE, 10)).tell(9, Tick())


def test_a_replay_says_how_many_decisions_differ(tmp_path):
    assert printed(show, verify(tape().write(tmp_path / "f"))) == "5 events of m: 2 decisions, 0 differ\n"


def test_a_replay_that_differs_shows_how(tmp_path):
    other = tape()
    other.lines[4] = other.lines[4].replace(b"queue_full", b"queue_timeout")
    said = printed(show, verify(other.write(tmp_path / "f")))
    assert "2 decisions, 1 differ" in said
    assert "2 queue_timeout" in said
    assert "2 queue_full" in said
    assert "2.500" in said


def test_a_gap_is_told(tmp_path):
    other = tape()
    other.lines.append(encode(Dropped(3)))
    assert "Lines of run 1 are missing" in printed(show, verify(other.write(tmp_path / "f")))


def test_a_change_is_told_with_what_it_can_show(tmp_path):
    change = "admission.queue.max_requests=5"
    compared = compare(tape().write(tmp_path / "f"), {"queue": {"max_requests": 5}})
    said = " ".join(printed(show_compared, compared, [change]).split())
    assert f"with {change}" in said
    assert "dispatched 1 2" in said
    assert "queue_full 1 0" in said
    assert "queue wait, longest (s) 0.000 2.500" in said
    assert "1 requests end otherwise" in said
    assert "Take the direction from this" in said


def test_a_change_that_changes_nothing_is_told(tmp_path):
    compared = compare(tape().write(tmp_path / "f"), {"queue": {"ttl": 30}})
    said = printed(show_compared, compared, ["admission.queue.ttl=30"])
    assert "No decision differs." in said
    assert "direction" not in said
