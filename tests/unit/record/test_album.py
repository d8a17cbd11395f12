"""Pictures of an incident, beside the core that recorded it."""

import pytest

from gateway.admission.events import Tick
from gateway.record.series import pictured
from tests.unit.record.incident import UP, Incident, shown
from tests.unit.record.recorded import Tape


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    tape = Incident().play()
    return tape, pictured(tape.write(tmp_path_factory.mktemp("log") / "events.jsonl"), {}, ())


def test_every_figure_is_that_of_the_core_at_that_time(incident):
    tape, made = incident
    pictures = shown(made)
    assert len(pictures) == len(made.series.sides[0].glances) == len(made.series.sides[0].points) == 31
    for second, (picture, snapshot) in enumerate(zip(pictures, tape.seen, strict=True)):
        (endpoint,), (state,) = picture.endpoints, snapshot.endpoints
        assert picture.at == second
        assert endpoint.usage == pytest.approx(state.effective_usage, abs=1e-4)
        assert endpoint.forecast == pytest.approx(state.forecast_usage, abs=1e-4)
        assert (endpoint.in_flight, endpoint.gate_open) == (state.in_flight, state.gate_open)
        assert picture.models[0].waiting == snapshot.queue.depth
        glance = made.series.sides[0].glances[second]
        assert (glance.running, glance.waiting) == (state.in_flight, snapshot.queue.depth)
    assert max(picture.endpoints[0].usage for picture in pictures) > 0.1


def test_what_became_of_each_request_is_seen(incident):
    _, made = incident
    pictures, (side,) = shown(made), made.series.sides
    running, ended = pictures[4].requests[0], {request.key: request for request in pictures[11].requests}
    assert (running.phase, running.flow, running.endpoint, running.came) == ("running", "app", "e", 1.0)
    assert (ended["1"].outcome, ended["1"].first, ended["1"].generated, ended["1"].ends) == ("completed", 2.0, 10, 11.0)
    assert (ended["2"].outcome, ended["2"].flow, ended["2"].generated) == ("queue_full", "late", None)
    assert [glance.at for glance in side.glances if glance.refused] == [5.0]
    assert [glance.at for glance in side.glances if glance.answered] == [11.0]
    assert pictures[11].models[0].outcomes == {"completed": 1, "queue_full": 1}


def test_what_a_record_does_not_tell_is_not_known(incident):
    _, made = incident
    pictures = shown(made)
    assert pictures[3].endpoints[0].preemptions is None
    assert pictures[7].endpoints[0].preemptions == 3
    endpoint, model = pictures[7].endpoints[0], pictures[12].models[0]
    assert (endpoint.kind, endpoint.url) == (None, "")
    assert (model.gap.count, model.gap.p50) == (0, None)


def test_an_endpoint_is_down_as_the_record_says(incident):
    _, made = incident
    picture = shown(made)[20]
    (endpoint,) = picture.endpoints
    assert (endpoint.state, endpoint.reason, endpoint.since) == ("hung", "no answer for 9 s", 13.0)
    assert picture.headline.text == "Not serving. e is hung."


def test_before_an_endpoint_is_up_nothing_serves(tmp_path):
    made = pictured(Tape().tell(0, Tick()).tell(2, UP).write(tmp_path / "f"), {}, ())
    first, *_, last = shown(made)
    assert (first.headline.level, last.headline.level) == ("bad", "good")
    assert "no endpoint has been up" in first.headline.text
