"""What `/kvgate/state` and the metrics are made of."""

from gateway.admission.commands import Dispatch
from gateway.admission.events import EndpointDown
from gateway.admission.snapshot import BandSnapshot
from tests.unit.admission.playbook import aborted, arrived, at, done, progress, up


def test_an_endpoint_shows_what_it_holds(play):
    p = play() >> up("a", seqs=8) >> arrived(1, blocks=20) << Dispatch(1, "a") >> progress(r1=1)
    p >> arrived(2, blocks=5, n=2) << Dispatch(2, "a")
    p >> arrived(3, blocks=1) << Dispatch(3, "a") >> aborted(3)
    state = p.endpoint("a")
    assert (state.held_blocks, state.in_flight, state.aborting) == (20 + 6 + 1, 3, 1)
    assert (state.sequences, state.unconfirmed_sequences) == (4, 2)
    assert state.peak_sequences == 4
    p >> done(1) >> done(2) >> arrived(4, blocks=1) << Dispatch(4, "a")
    assert (p.endpoint("a").sequences, p.endpoint("a").peak_sequences) == (2, 4)
    assert (state.ledger_usage, state.effective_usage, state.observed_usage) == (0.27, 0.27, None)
    assert (state.sequence_limit, state.sequence_limit_learned) == (8, False)
    assert (state.gate_open, state.closed_by) == (True, ())
    assert state.capacity.kv_blocks == 100


def test_the_queue_shows_who_waits(play):
    p = play() >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
    p >> at(3) >> arrived(2, band=2, size=70) >> at(4) >> arrived(3, size=30) >> at(6)
    queue = p.controller.snapshot(p.now).queue
    assert (queue.depth, queue.bytes, queue.oldest_age) == (2, 100, 3)
    assert queue.bands == (BandSnapshot(0, 1), BandSnapshot(2, 1))


def test_the_queue_shows_each_flow(play):
    p = play(weights={"vip": 3.0}) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
    p >> at(3) >> arrived(2, flow="vip") >> at(4) >> arrived(3, flow="vip") >> arrived(4, flow="x", band=1) >> at(6)
    vip, other = p.controller.flows(p.now, 9)
    assert (vip.band, vip.flow, vip.weight, vip.waiting, vip.oldest_at) == (0, "vip", 3.0, 2, 3)
    assert (other.band, other.flow, other.waiting) == (1, "x", 1)
    assert [flow.flow for flow in p.controller.flows(p.now, 1)] == ["vip"], "those with the most"


def test_the_latest_requests_are_told(play):
    p = play() >> up("a", seqs=8) >> arrived(1, blocks=20) << Dispatch(1, "a") >> at(2) >> progress(r1=1)
    p >> arrived(2, blocks=90, flow="x") >> at(5)
    waiting, running = p.controller.requests(p.now, 9)
    assert (waiting.request, waiting.flow, waiting.endpoint, waiting.sent_at, waiting.arrived_at) == (
        2,
        "x",
        None,
        None,
        2,
    )
    assert (running.request, running.endpoint, running.held_blocks, running.generated) == (1, "a", 20, 1)
    assert running.expected >= running.generated
    assert running.ends_at is None, "no decode rate is known"
    assert [found.request for found in p.controller.requests(p.now, 1)] == [2]


def test_an_empty_pool_has_a_snapshot(play):
    state = play().controller.snapshot(5.0)
    assert (state.endpoints, state.queue.depth, state.queue.oldest_age) == ((), 0, 0)
    assert (state.drain_rate, state.draining) == (None, False)


def test_how_full_a_pool_is_needs_no_snapshot(play):
    p = play() >> up("a") >> up("b", blocks=None) >> up("c", length=10) >> EndpointDown("c", "gone")
    p >> arrived(1, blocks=90, n=2) << Dispatch(1, "a")
    load = p.controller.load(p.now)
    assert (load.waiting, load.sequences, load.usage) == (0, 2, (("a", 0.91),))


def test_who_waits_longest_and_what_is_in_flight_need_no_snapshot(play):
    p = play() >> up("a", blocks=10) >> arrived(1, blocks=9) << Dispatch(1, "a")
    controller = p.controller
    assert controller.oldest_arrival() is None
    assert (controller.in_flight("a"), controller.in_flight("b")) == (1, 0)
    p >> arrived(2, blocks=9) >> at(p.now + 3) >> arrived(3, blocks=9)
    assert controller.oldest_arrival() == p.now - 3


def test_a_long_queue_is_not_gone_through_to_be_shown(play, monkeypatch):
    p = play() >> up("a", blocks=100) >> arrived(1, blocks=90) << Dispatch(1, "a")
    for number in range(2, 40):
        p >> arrived(number, blocks=90, flow=f"f{number % 3}", n=2)
    shown, flows = p.controller.snapshot(p.now), p.controller.flows(p.now, 2)
    monkeypatch.setattr(type(p.controller._queue), "__iter__", None)  # eight of 2,048 took 20 ms of the event loop
    assert p.controller.snapshot(p.now) == shown
    assert p.controller.flows(p.now, 2) == flows
    assert [(flow.flow, flow.waiting) for flow in flows] == [("f0", 13), ("f2", 13)]
    assert p.controller.oldest_arrival() == p.now
