import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, Capacity, Demand, EndpointUp, Observed
from gateway.admission.policy import Policy
from gateway.admission.snapshot import FlowSnapshot
from gateway.ops.pictures import parts
from gateway.ops.pictures.digest import OfModel


def core(blocks=100):
    made = AdmissionController(Policy(ttft_target=None))
    made.handle(EndpointUp("e", Capacity(1000, blocks, max_num_seqs=1)), 10.0)
    for number in (1, 2):
        made.handle(Arrived(number, Demand((160,), 100), flow="app", band=1), 10.0 + number)
    return made


def split(made, now):
    return parts.split(made.snapshot(now).endpoints[0])


def test_the_parts_of_a_cache_make_a_whole():
    made = core()
    made.handle(Observed("e", 13.0, 0.3, 1, 0, None), 13.0)
    found = split(made, 13.0)
    assert found.foreign > 0
    assert found.running == pytest.approx(0.11), "its prompt, and a block for its first token"
    assert sum((found.running, found.shared, found.foreign, found.promised, found.free)) == pytest.approx(1, abs=1e-3)


def test_without_a_size_there_are_no_parts():
    assert split(core(blocks=None), 13.0) is None


def test_times_of_requests_are_those_of_the_picture():
    shown = {one.key: one for one in (parts.live("m", each, 1000.0) for each in core().requests(15.0, 9))}
    running, waiting = shown["1"], shown["2"]
    assert (running.phase, running.came, running.waited, running.endpoint) == ("running", 1011.0, 0.0, "e")
    assert (waiting.phase, waiting.came, waiting.waited, waiting.endpoint) == ("waiting", 1012.0, None, None)
    assert (waiting.flow, waiting.band, waiting.expected) == ("app", 1, None)


def test_flows_that_wait_come_before_those_that_were_served():
    waiting = FlowSnapshot(band=2, flow="app", weight=3.0, waiting=2, oldest_at=5.0, predicted_wait=1.26)
    recent = OfModel(outcomes={"completed": 2}, served={"batch": 300.0, "app": 100.0})
    shown = parts.queue("m", 2, 5.0, [waiting], recent, ttft_target=5.0, weights={}, epoch=100.0)
    app, batch = shown.flows
    assert (shown.oldest, app.oldest, app.predicted_wait) == (105.0, 105.0, 1.3)
    assert (app.service, app.due, batch.flow, batch.service, batch.due) == (0.25, 0.75, "batch", 0.75, 0.25)
    assert (app.band, batch.band) == (2, None), "who does not wait, waits in no band"
    assert shown.outcomes == {"completed": 2}


def test_what_is_not_known_is_not_a_number():
    assert (parts.rate(0.0), parts.rate(0.26), parts.share(None), parts.share(0.12345)) == (None, 0.3, None, 0.1235)
