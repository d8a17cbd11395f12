from gateway.admission.events import (
    Arrived,
    Back,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    Returned,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.record.lines import Dropped, encode
from gateway.record.served import recording
from tests.unit.record.recorded import Tape

UP = EndpointUp("e", Capacity(1000, 100, max_num_seqs=2))


def arrived(number, n=1, key=0):
    return Arrived(number, Demand((10,), 100, n), prefix=((8, 1),), key=key)


def scrape(at, usage, *, generated, preemptions=0.0):
    return Observed("e", at, usage, 1, 0, generated, preemptions)


def test_what_became_of_each_request_and_when(tmp_path):
    tape = Tape(ttft_target=None, queue={"max_requests": 1})
    tape.tell(100, UP).tell(101, arrived(1), arrived(2), arrived(3), arrived(4))
    tape.tell(103, Progress(((1, 5),))).tell(105, Finished(1, Verdict.DONE, 20))
    tape.tell(106, Progress(((2, 7),)), Finished(2, Verdict.ABORTED)).tell(110, Finished(3, Verdict.FAILED))
    found = recording(tape.write(tmp_path / "f"))
    one, two, three, four = found.requests
    assert (one.model, one.arrived_at, one.dispatched_at, one.ended_at) == ("m", 1, 1, 5)
    assert (one.generated, one.done, one.refused, one.prefix) == (20, True, None, ((8, 1),))
    assert (two.generated, two.done, two.ended_at) == (7, False, 6)
    assert (three.dispatched_at, three.ended_at, three.done) == (5, 10, False)
    assert (four.dispatched_at, four.ended_at, four.refused) == (None, 1, Outcome.QUEUE_FULL)
    assert found.seconds == 10
    assert found.endpoints["e"].peak_sequences == 2
    assert found.started.kvgate == "0.0"
    assert not found.gaps


def test_what_an_endpoint_did_is_counted_over_its_restarts(tmp_path):
    tape = Tape().tell(0, UP, scrape(0, 0.1, generated=500.0, preemptions=7.0))
    tape.tell(1, scrape(1, 0.3, generated=600.0, preemptions=9.0)).tell(2, scrape(2, 0.2, generated=40.0))
    watched = recording(tape.write(tmp_path / "f")).endpoints["e"]
    assert watched.usages == [0.1, 0.3, 0.2]
    assert watched.used_at == [0, 1, 2]
    assert (watched.preemptions, watched.generated, watched.counts_preemptions) == (2, 140, True)


def test_one_that_was_returned_is_with_its_endpoint_once(tmp_path):
    tape = Tape(ttft_target=None).tell(0, UP, arrived(1, n=2)).tell(1, Returned(1, Back.FAILED))
    tape.tell(2, Finished(1, Verdict.DONE, 5))
    found = recording(tape.write(tmp_path / "f"))
    assert found.requests[0].done
    assert found.endpoints["e"].peak_sequences == 2


def test_what_an_earlier_run_sent_is_with_its_endpoint_and_no_request_of_this_one(tmp_path):
    tape = Tape(ttft_target=None).tell(0, UP, Declared(arrived(1, n=2), "e", 3), Declared(arrived(2), "e"), arrived(3))
    tape.tell(1, Finished(1, Verdict.DONE, 5)).tell(2, Returned(2, Back.FAILED))
    found = recording(tape.write(tmp_path / "f"))
    assert [one.dispatched_at for one in found.requests] == [1]
    assert found.endpoints["e"].peak_sequences == 3


def test_runs_follow_each_other_and_what_is_open_does_not_go_on(tmp_path):
    first, second = Tape().tell(50, UP, arrived(1)), Tape().tell(7, UP, arrived(1))
    first.tell(60, arrived(2))
    second.tell(9, Finished(1, Verdict.DONE, 3))
    file = tmp_path / "f"
    file.write_bytes(b"".join([*first.lines, encode(Dropped(3)), *second.lines]))
    found = recording(file)
    assert found.gaps
    assert [(one.arrived_at, one.ended_at) for one in found.requests] == [(0, None), (10, None), (10, 12)]
    assert (found.seconds, found.endpoints["e"].peak_sequences) == (12, 2)


def test_one_that_was_refused_and_comes_back_is_known_again(tmp_path):
    tape = Tape(ttft_target=None, queue={"max_requests": 1})
    tape.tell(0, UP, arrived(1), arrived(2), arrived(3), arrived(4, key=7)).tell(
        1, arrived(5, key=7), arrived(6, key=8)
    )
    tape.tell(2, Finished(1, Verdict.DONE, 20), arrived(7, key=7), arrived(8, key=9))
    found = recording(tape.write(tmp_path / "f"))
    assert [one.came_back for one in found.requests] == [False, False, False, True, True, False, False, False]
    assert [one.refused is not None for one in found.requests] == [False] * 3 + [True] * 3 + [False, True]


def test_an_endpoint_serves_since_it_came_back_last(tmp_path):
    tape = Tape().tell(0, UP).tell(3, UP)
    assert recording(tape.write(tmp_path / "f")).endpoints["e"].up_since == 0
    tape.tell(5, EndpointDown("e", "gone"))
    assert recording(tape.write(tmp_path / "f")).endpoints["e"].up_since is None
    tape.tell(7, UP)
    assert recording(tape.write(tmp_path / "f")).endpoints["e"].up_since == 7
    tape.lines += tape.lines[:2]
    assert recording(tape.write(tmp_path / "f")).endpoints["e"].up_since is None


def test_a_request_is_where_it_was_sent_last(tmp_path):
    found = recording(Tape(ttft_target=None).tell(0, UP, arrived(1)).write(tmp_path / "f"))
    assert found.requests[0].endpoint == "e"
