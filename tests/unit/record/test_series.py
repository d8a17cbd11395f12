import pytest

from gateway.admission.events import Tick
from gateway.record.lines import EventLogError
from gateway.record.series import pictured
from tests.unit.record.incident import LOOSE, UP, Incident, arrived, shown
from tests.unit.record.recorded import Tape


def test_under_another_setting_the_same_load_is_pictured_beside_it(tmp_path):
    file = Incident().play().write(tmp_path / "f")
    made = pictured(file, {"queue": {"max_requests": 5}}, ["admission.queue.max_requests=5"])
    recorded, other = made.series.sides
    assert (recorded.otherwise, other.otherwise) == (None, 5.0)
    assert other.settings == ("admission.queue.max_requests=5",)
    assert [glance.at for glance in other.glances] == [glance.at for glance in recorded.glances]
    assert [(glance.at, glance.waiting) for glance in other.glances if glance.waiting] == [(s, 1) for s in range(5, 11)]
    assert sum(glance.refused for glance in other.glances) == 0
    assert [glance.at for glance in other.glances if glance.answered] == [11.0, 21.0], "served for the mean of the rest"
    after = shown(made, side=1)[8].endpoints[0]
    assert (after.preemptions, after.scraped) == (None, None), "the record's gauges show another load"


def test_a_version_that_decides_otherwise_is_found_out(tmp_path):
    tape = Incident().play()
    tape.lines = [line.replace(b'"endpoint":"e","would"', b'"endpoint":"f","would"') for line in tape.lines]
    assert pictured(tape.write(tmp_path / "f"), {}, ()).series.sides[0].otherwise == 1.0


def test_each_run_begins_anew(tmp_path):
    first, second = Incident().play(), Tape(**LOOSE).tell(7000, UP, arrived(1)).tell(7002, Tick())
    first.lines += second.lines
    made = pictured(first.write(tmp_path / "f"), {}, ())
    assert made.series.runs == [0, 30]
    last = shown(made)[-1]
    assert (last.at, last.endpoints[0].healthy, [request.phase for request in last.requests]) == (32, True, ["running"])


def test_a_record_without_an_event_cannot_be_shown(tmp_path):
    with pytest.raises(EventLogError, match="no event"):
        pictured(Tape().write(tmp_path / "f"), {}, ())
