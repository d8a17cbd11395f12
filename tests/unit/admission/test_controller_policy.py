"""The product, as scripts: the operator changes the policy while requests wait and run."""

from dataclasses import replace

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Back, PolicyChanged, Returned, Tick
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Band, Bounds, Mode, Policy
from tests.unit.admission.playbook import arrived, at, done, nothing, progress, refused, up
from tests.unit.admission.test_controller_turns import at_a_rate, costs_100

UNHURRIED = {"ttft_target": None, "bounds": Bounds.HYSTERESIS}


def changed(**settings):
    return PolicyChanged(Policy(**{**UNHURRIED, **settings}))


def test_a_higher_fence_lets_go_who_waits_and_a_lower_one_touches_nobody_in_flight(play):
    p = play(**UNHURRIED, kv_high=0.5, kv_low=0.4) >> up("a", blocks=100)
    p >> arrived(1, blocks=45) << Dispatch(1, "a") >> progress(r1=1) >> arrived(2, blocks=20) << nothing
    p >> changed(kv_high=0.9, kv_low=0.8) << Dispatch(2, "a")
    p >> changed(kv_high=0.2, kv_low=0.1) << nothing
    assert p.endpoint("a").in_flight == 2
    assert p.endpoint("a").closed_by == ("gate",)
    p >> changed(bounds=Bounds.FORECAST) << nothing
    assert p.endpoint("a").gate_open, "there is no gate to stay closed"


def test_who_waits_goes_by_the_new_limits_from_its_own_arrival(play):
    p = play(**UNHURRIED, ttl=60.0) >> up("a", seqs=1)
    p >> arrived(1) << Dispatch(1, "a") >> arrived(2) >> at(4) >> arrived(3) >> at(6)
    p >> changed(ttl=5.0) << refused(2, Outcome.QUEUE_TIMEOUT)
    p >> at(8.9) >> Tick() << nothing >> at(9) >> Tick() << refused(3, Outcome.QUEUE_TIMEOUT)


def test_a_target_that_is_set_is_for_those_that_wait_already(play):
    p = play(**UNHURRIED) >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a")
    p >> arrived(2) >> arrived(3, band=1) >> at(3)
    p >> changed(ttft_target=2.0, bands={1: Band(ttft_target=9.0)}) << refused(2, Outcome.WAIT_TOO_LONG)
    p >> at(9) >> Tick() << refused(3, Outcome.WAIT_TOO_LONG)


def test_a_shorter_queue_sends_nobody_away_and_takes_nobody_more(play):
    p = play(**UNHURRIED) >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a") >> arrived(2) >> arrived(3)
    p >> changed(max_requests=1) << nothing >> arrived(4) << refused(4, Outcome.QUEUE_FULL)
    p >> done(1) << Dispatch(2, "a") >> arrived(5) << refused(5, Outcome.QUEUE_FULL)
    p >> done(2) << Dispatch(3, "a") >> arrived(6) << nothing


def test_observe_lets_all_go_and_enforce_holds_them_again(play):
    p = play(**UNHURRIED) >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a") >> arrived(2) >> arrived(3)
    p >> changed(mode=Mode.OBSERVE) << Dispatch(2, "a", "queued") << Dispatch(3, "a", "queued")
    p >> arrived(4) << Dispatch(4, "a", "queued")
    p >> changed() >> arrived(5) << nothing >> done(1) >> done(2) >> done(3) >> done(4) << Dispatch(5, "a")


def test_who_fits_nowhere_and_waited_only_as_nothing_was_refused_is_told_so(play):
    p = play(**UNHURRIED, mode=Mode.OBSERVE) >> up("a", blocks=10) >> arrived(1, 40) << Dispatch(1, "a", None)
    p >> Returned(1, Back.BUSY) << nothing >> arrived(2, 400) << nothing
    p >> changed() << refused(2, Outcome.CONTEXT_LENGTH_EXCEEDED) >> at(1) >> Tick() << Dispatch(1, "a")


@pytest.mark.parametrize(("weight", "served"), [(1.0, 4), (3.0, 6)])
def test_weights_are_those_of_now_for_flows_that_wait(play, weight, served):
    p = play(**UNHURRIED) >> up("a", seqs=1) >> arrived(0, 100, max_tokens=10, flow="z") << Dispatch(0, "a")
    flows = {}
    for request, flow in enumerate("x" * 12 + "y" * 12, 1):
        p >> arrived(request, 100, max_tokens=10, flow=flow)
        flows[request] = flow
    p >> done(0, 10)
    first = p.pending.pop().request
    p >> changed(weights={"x": weight}) << nothing
    gone, last = "", first
    for _ in range(12):
        p >> done(last, 10)
        last = p.pending.pop().request
        gone += flows[last]
    assert gone[-8:].count("x") == served


def test_weights_are_those_of_now_for_what_is_promised(play):
    def told(before):
        p = at_a_rate(play, weights=before)
        p >> PolicyChanged(replace(p.controller._pool.policy, weights={"x": 9.0})) << nothing
        seconds = []
        for request in range(100, 140):
            p >> costs_100(request, key=request, flow="xy"[request % 2])
            seconds += [command.retry_after for command in p.pending]
            p.pending.clear()
        return seconds

    assert told({}) == pytest.approx(told({"x": 9.0}))


def test_a_share_that_is_reserved_is_owed_from_now_on(play):
    p = play(**UNHURRIED) >> up("a", seqs=1) >> arrived(0, 100, max_tokens=10) << Dispatch(0, "a")
    for request in range(1, 13):
        p >> arrived(request, 100, max_tokens=10, band=request % 2)
    p >> changed(bands={1: Band(reserved=0.5)})
    last, bands = 0, []
    for _ in range(6):
        p >> done(last, 10)
        last = p.pending.pop().request
        bands.append(last % 2)
    assert bands.count(1) == 3, "and none without a share: the more urgent band has enough for all of them"


def test_passes_and_the_forecast_are_those_of_now(play):
    p = play(**UNHURRIED, max_passes=0) >> up("a", blocks=100) >> arrived(1, blocks=80) << Dispatch(1, "a")
    p >> arrived(2, blocks=30) >> arrived(3, blocks=5) << nothing >> progress(r1=1)
    p >> changed(max_passes=1) << Dispatch(3, "a") >> arrived(4, blocks=2) << nothing
    p >> changed(bounds=Bounds.BOTH, max_passes=9) << nothing
    assert p.controller.explain(arrived(5, blocks=1), 0.0).candidates[0].rule == "forecast"
