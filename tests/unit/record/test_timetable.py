from gateway.admission.events import Tick
from gateway.record.lines import Dropped, Started, encode
from gateway.record.timetable import Span, timetable
from tests.unit.record.recorded import Tape


def tape(*times):
    made = Tape()
    for at in times:
        made.tell(at, Tick())
    return made


def test_a_picture_each_second_and_one_of_the_end(tmp_path):
    table = timetable(tape(10, 11, 12.5).write(tmp_path / "f"))
    assert table.times(1) == [10, 11, 12, 12.5]
    assert table.interval == 1
    assert table.versions == ("0.0",)


def test_a_long_record_has_fewer(tmp_path):
    table = timetable(tape(0, 86_400).write(tmp_path / "f"), most=100)
    assert 90 < len(table.times(1)) <= 100


def test_runs_follow_each_other_without_the_time_between(tmp_path):
    first, second = tape(10, 13), tape(5000, 5002)
    first.lines += [encode(Started("0.1", *[{}] * 2, 0.5)), *second.lines[1:]]
    table = timetable(first.write(tmp_path / "f"))
    assert table.runs == {1: Span(10, 13, 0), 2: Span(5000, 5002, 3)}
    assert table.versions == ("0.0", "0.1")


def test_what_comes_after_a_gap_is_left_out(tmp_path):
    made = tape(1, 2)
    made.lines.append(encode(Dropped(3)))
    assert timetable(made.tell(9, Tick()).write(tmp_path / "f")).runs == {1: Span(1, 2, 0)}


def test_without_an_event_there_is_no_time(tmp_path):
    assert timetable(Tape().write(tmp_path / "f")).runs == {}
