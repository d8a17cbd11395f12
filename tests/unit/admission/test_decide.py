"""One decision: what the controller does, what observe mode notes and what explain says are the same."""

import pytest

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Back, EndpointDown, Returned, ShutdownStarted
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Mode
from gateway.admission.tuning import TUNING
from tests.unit.admission.playbook import arrived, at, done, nothing, progress, up


def asked(p, *args, **settings):
    return p.controller.explain(arrived(99, *args, **settings), p.now)


def busy(play, **settings):
    """An endpoint of 100 blocks, 80 of them in use."""
    p = play(**settings) >> up("a", blocks=100, length=1600) >> arrived(1, blocks=80, max_tokens=1)
    return p << Dispatch(1, "a") >> progress(r1=1) >> at(1)


CASES = {
    "fits": {"blocks": 5},
    "kv": {"blocks": 15},
    "context_length": {"blocks": 101},
}


@pytest.mark.parametrize("rule", CASES)
def test_what_explain_says_is_what_is_done(play, rule):
    p = busy(play)
    told = asked(p, **CASES[rule], max_tokens=1)
    assert told.rule == rule
    p >> arrived(99, **CASES[rule], max_tokens=1)
    done = p.pending.pop() if p.pending else None
    if told.verdict == "dispatch":
        assert done == Dispatch(99, told.endpoint)
    elif told.verdict == "queue":
        assert done is None
    else:
        assert isinstance(done, Reject)
        assert done.outcome.value == told.verdict


@pytest.mark.parametrize("rule", CASES)
def test_observe_mode_notes_what_would_be_done_and_explain_says_both(play, rule):
    enforced = asked(busy(play), **CASES[rule], max_tokens=1)
    p = busy(play, mode=Mode.OBSERVE)
    told = asked(p, **CASES[rule], max_tokens=1)
    would = {"dispatch": None, "queue": "queued"}.get(enforced.verdict, enforced.verdict)
    assert (told.verdict, told.rule, told.would, told.endpoint) == ("dispatch", rule, would, "a")
    p >> arrived(99, **CASES[rule], max_tokens=1) << Dispatch(99, "a", would)


@pytest.mark.parametrize("mode", Mode)
def test_what_must_leave_room_for_other_flows_waits_and_observe_mode_notes_it(play, mode):
    p = play(mode=mode) >> up("a", blocks=100)
    p >> arrived(1, blocks=5, flow="quiet") << Dispatch(1, "a") >> progress(r1=1)
    p >> arrived(2, blocks=60, flow="noisy") << Dispatch(2, "a") >> progress(r2=1) >> at(5.0)
    told = asked(p, blocks=24, flow="noisy")
    p >> arrived(99, blocks=24, flow="noisy")
    if mode is Mode.OBSERVE:
        assert (told.rule, told.would) == ("share", "queued")
        p << Dispatch(99, "a", "queued")
    else:
        assert (told.rule, told.verdict) == ("share", "queue")
        p << nothing


def test_observe_mode_sends_one_request_to_an_endpoint_on_trial_while_another_is_up(play):
    p = play(mode=Mode.OBSERVE) >> up("a", blocks=100) >> arrived(1, blocks=85) << Dispatch(1, "a") >> progress(r1=1)
    p >> up("b", blocks=100, seqs=1) >> arrived(2) << Dispatch(2, "b")
    told = asked(p, blocks=15)
    assert (told.would, told.endpoint) == ("queued", "a")
    p >> arrived(3, blocks=15) << Dispatch(3, "a", "queued") >> EndpointDown("a", "killed")
    p >> arrived(4) << Dispatch(4, "b", "queued")


def test_observe_mode_spares_an_endpoint_that_fails_on_all_it_gets(play):
    p = play(mode=Mode.OBSERVE) >> up("a", blocks=100) >> arrived(1, blocks=85) << Dispatch(1, "a") >> progress(r1=1)
    p >> up("b", blocks=100)
    for number in range(2, 2 + TUNING.failing_after):
        p >> arrived(number, blocks=5) << Dispatch(number, "b") >> Returned(number, Back.FAILED)
        p << Dispatch(number, "a", None) >> done(number)
    p >> arrived(9, blocks=15) << Dispatch(9, "a", "queued")


def test_a_full_queue_and_a_wait_in_vain_are_noted_too(play):
    busy(play, mode=Mode.OBSERVE, max_requests=0) >> arrived(2, blocks=30) << Dispatch(2, "a", "queue_full")


def test_who_can_go_nowhere_waits_in_observe_mode_too(play):
    p = play(mode=Mode.OBSERVE)
    assert (asked(p).verdict, asked(p).rule) == ("queue", "no_endpoint")
    p >> arrived(1) << nothing


def test_deciding_changes_nothing(play):
    p = busy(play)
    before = p.controller.snapshot(p.now)
    for case in CASES.values():
        asked(p, **case)
    assert p.controller.snapshot(p.now) == before


def test_a_gateway_that_drains_takes_nothing(play):
    p = busy(play) >> ShutdownStarted() << nothing
    assert (asked(p).verdict, asked(p).rule) == ("draining", "draining")
    p >> arrived(2) << Reject(2, Outcome.DRAINING)
