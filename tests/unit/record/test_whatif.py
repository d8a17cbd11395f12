import pytest

from gateway.admission.events import (
    Arrived,
    Back,
    Behind,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    Returned,
    Tick,
    Verdict,
)
from gateway.record.whatif import DISPATCHED, LEFT, WAITING, Service, compare, waits
from tests.unit.record.recorded import Tape

UP = EndpointUp("e", Capacity(1000, 100, max_num_seqs=1))
LOOSE = {"ttft_target": None}


def arrived(number, key=0):
    return Arrived(number, Demand((10,), 100), key=key)


def done(number, tokens=10):
    return Finished(number, Verdict.DONE, tokens)


def ended(fates):
    return {request: fate.ended for (_, request), fate in fates.items()}


def refused():
    """One runs for ten seconds; a second finds no place in the queue, a third comes later and runs as long."""
    tape = Tape(**LOOSE, queue={"max_requests": 0})
    tape.tell(0, UP).tell(1, arrived(1)).tell(3, Progress(((1, 1),))).tell(5, arrived(2))
    return tape.tell(11, done(1)).tell(30, arrived(3)).tell(40, done(3)).tell(50, Tick())


def test_without_a_change_nothing_differs(tmp_path):
    compared = compare(refused().write(tmp_path / "f"), {})
    assert compared.differences == []
    assert ended(compared.recorded) == ended(compared.changed) == {1: DISPATCHED, 2: "queue_full", 3: DISPATCHED}


def test_who_was_refused_waits_where_there_is_a_queue_and_is_served_as_others_were(tmp_path):
    compared = compare(refused().write(tmp_path / "f"), {"queue": {"max_requests": 5}})
    assert ended(compared.changed) == dict.fromkeys((1, 2, 3), DISPATCHED)
    (difference,) = compared.differences
    assert difference.since == 5
    assert compared.outcomes() == [(DISPATCHED, 2, 3), ("queue_full", 1, 0)]
    assert [request for _, request, *_ in compared.otherwise()] == [2]
    # The first ends when it did; the second runs for the mean of the others, ten seconds, and is gone by the third.
    assert waits(compared.recorded.values()) == [0, 0]
    assert waits(compared.changed.values()) == [0, 0, 6]


def test_who_goes_later_than_in_the_record_ends_later_too(tmp_path):
    tape = Tape(**LOOSE, queue={"max_requests": 0})
    tape.tell(0, UP).tell(1, arrived(1)).tell(5, arrived(2)).tell(11, done(1))
    tape.tell(12, arrived(3)).tell(22, done(3)).tell(23, arrived(4)).tell(33, done(4)).tell(60, Tick())
    compared = compare(tape.write(tmp_path / "f"), {"queue": {"max_requests": 5}})
    # Ten seconds each, one after the other: they go at 1, 11, 21 and 31.
    assert waits(compared.changed.values()) == [0, 6, 8, 9]


def test_who_was_served_is_refused_where_there_is_no_queue(tmp_path):
    tape = Tape(**LOOSE)
    tape.tell(0, UP).tell(1, arrived(1)).tell(2, arrived(2)).tell(5, done(1)).tell(8, done(2)).tell(9, Tick())
    compared = compare(tape.write(tmp_path / "f"), {"queue": {"max_requests": 0}})
    assert ended(compared.changed) == {1: DISPATCHED, 2: "queue_full"}
    assert ended(compared.recorded) == {1: DISPATCHED, 2: DISPATCHED}


def test_the_changed_core_is_woken_when_it_asked_for_it(tmp_path):
    """Its times to live pass between two lines of the record."""
    tape = refused()
    tape.tell(100, Tick())
    compared = compare(tape.write(tmp_path / "f"), {"queue": {"max_requests": 5, "ttl": 2, "no_endpoint_ttl": 2}})
    assert ended(compared.changed)[2] == "queue_timeout"
    assert next(fate.at for (_, request), fate in compared.changed.items() if request == 2) == pytest.approx(7)


def test_who_left_or_still_waits_is_told(tmp_path):
    tape = Tape(**LOOSE).tell(0, UP).tell(1, arrived(1), arrived(2), arrived(3)).tell(2, Cancelled(2))
    compared = compare(tape.write(tmp_path / "f"), {})
    assert ended(compared.recorded) == ended(compared.changed) == {1: DISPATCHED, 2: LEFT, 3: WAITING}
    assert [name for name, *_ in compared.outcomes()] == [DISPATCHED, LEFT, WAITING]


def test_without_anybody_served_nobody_ends(tmp_path):
    tape = Tape(**LOOSE, queue={"max_requests": 0}).tell(0, UP).tell(1, arrived(1), arrived(2)).tell(99, Tick())
    compared = compare(tape.write(tmp_path / "f"), {"queue": {"max_requests": 1, "ttl": 500}})
    assert ended(compared.changed) == {1: DISPATCHED, 2: WAITING}


def test_tokens_come_at_an_even_pace():
    service = Service(first=2, duration=12, tokens=11)
    assert [service.generated(elapsed) for elapsed in (0, 1.9, 2, 7, 12, 99)] == [0, 0, 1, 6, 11, 11]


class TestReturns:
    """The first runs for ten seconds; another is refused, twice, and served when it comes for the third time."""

    @pytest.fixture
    def compared(self, tmp_path):
        tape = Tape(**LOOSE, queue={"max_requests": 0})
        tape.tell(0, UP).tell(1, arrived(1)).tell(3, Progress(((1, 1),))).tell(4, arrived(2, key=7))
        tape.tell(6, arrived(3, key=7)).tell(11, done(1)).tell(12, arrived(4, key=7)).tell(22, done(4))
        tape.tell(30, arrived(5, key=7)).tell(40, done(5)).tell(50, Tick())
        file = tape.write(tmp_path / "f")
        return [compare(file, {"queue": {"max_requests": most}}) for most in (0, 1)]

    def test_they_are_one_request_whose_last_try_counts(self, compared):
        same, _ = compared
        assert ended(same.recorded) == ended(same.changed) == dict.fromkeys((1, 2, 5), DISPATCHED)
        assert waits(same.recorded.values()) == [0, 0, 0]

    def test_who_is_not_refused_does_not_come_back(self, compared):
        _, other = compared
        assert ended(other.changed) == dict.fromkeys((1, 2, 5), DISPATCHED)
        assert waits(other.changed.values()) == [0, 0, 7]


def taken_over():
    """One was in flight under an earlier core, for ten seconds more; one finds no place in the queue meanwhile."""
    tape = Tape(**LOOSE, queue={"max_requests": 0})
    tape.tell(0, UP, Declared(arrived(1), "e", 30)).tell(3, Progress(((1, 40),))).tell(5, arrived(2))
    return tape.tell(10, done(1)).tell(20, arrived(3)).tell(24, done(3)).tell(50, Tick())


def test_what_an_earlier_core_had_in_flight_ends_as_it_did_and_is_not_counted(tmp_path):
    file = taken_over().write(tmp_path / "f")
    unchanged = compare(file, {})
    assert unchanged.differences == []
    assert ended(unchanged.recorded) == ended(unchanged.changed) == {2: "queue_full", 3: DISPATCHED}
    changed = compare(file, {"queue": {"max_requests": 5}})
    assert ended(changed.changed) == {2: DISPATCHED, 3: DISPATCHED}
    assert waits(changed.changed.values()) == [0, 5], "it is gone at 10, as in the record"


def test_what_an_earlier_core_had_in_flight_and_never_ended_takes_the_mean_of_the_others(tmp_path):
    tape = Tape(**LOOSE, queue={"max_requests": 0}).tell(0, UP, Declared(arrived(1), "e", 30))
    assert ended(compare(tape.write(tmp_path / "f"), {}).recorded) == {}
    tape.tell(1, Declared(arrived(9), "unknown", 3), Declared(arrived(1), "e", 3)).tell(5, arrived(2)).tell(90, Tick())
    changed = compare(tape.write(tmp_path / "f"), {"queue": {"max_requests": 5, "ttl": 500}})
    assert ended(changed.changed) == {2: WAITING}, "nobody was served to the end, so nobody ever ends"


def test_whose_client_is_behind_says_nothing_of_stand_in_engines(tmp_path):
    tape = Tape(**LOOSE).tell(0, UP).tell(1, arrived(1)).tell(2, arrived(2)).tell(3, Behind(1))
    for time in (4, 6):
        tape.tell(time, Observed("e", float(time), 0.0, 0, 0, None))
    tape.tell(7, done(2)).tell(9, done(1)).tell(50, Tick())
    file = tape.write(tmp_path / "f")
    compared = compare(file, {})
    assert compared.differences == []
    assert waits(compared.changed.values()) == [0, 4], "the second goes once the first is let go"
    assert ended(compare(file, {"queue": {"max_requests": 0}}).changed) == {1: DISPATCHED, 2: "queue_full"}


@pytest.mark.parametrize("why", Back)
def test_what_an_earlier_core_had_in_flight_may_come_back(tmp_path, why):
    tape = Tape(**LOOSE).tell(0, UP, Declared(arrived(1), "e")).tell(1, arrived(2)).tell(2, Returned(1, why))
    tape.tell(4, done(2)).tell(6, done(1)).tell(50, Tick())
    compared = compare(tape.write(tmp_path / "f"), {})
    assert compared.differences == []
    assert ended(compared.recorded) == ended(compared.changed) == {2: DISPATCHED}
