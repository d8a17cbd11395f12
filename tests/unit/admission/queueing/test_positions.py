"""Who waits is told the place and the wait that the order of service gives it."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Cancelled, Warmth
from gateway.admission.policy import Band, Bounds, Policy
from gateway.admission.snapshot import Turn
from tests.unit.admission.playbook import Playbook, arrived, at, done, up

PACE = Warmth(drained=(60.0, 10.0))
"""6 tokens of service in a second."""


def full(**settings):
    """A script whose only place is taken by request 0."""
    policy = Policy(**{"bounds": Bounds.HYSTERESIS, "ttft_target": None, "max_passes": 0, **settings})
    p = Playbook(policy) >> up("a", seqs=1) >> arrived(0, 10, max_tokens=1) << Dispatch(0, "a")
    return p >> PACE


def turns(p, *requests):
    return {request: p.controller.turn(request, p.now) for request in requests}


@pytest.mark.parametrize(
    "waiting",
    [
        [("", 10, 0)] * 4,
        [("many", 10, 0)] * 4 + [("few", 10, 0)],
        [("heavy", 300, 0), ("light", 10, 0)] * 3,
        [("twice", 60, 0)] * 3 + [("once", 60, 0)] * 3 + [("other", 20, 0)],
        [("later", 10, 2)] * 2 + [("now", 10, 0)] * 2,
    ],
    ids=["first come", "two flows", "by cost", "by weight", "by band"],
)
def test_they_go_in_the_order_that_they_were_told(waiting):
    p = full(weights={"twice": 2.0})
    for number, (flow, size, band) in enumerate(waiting, 1):
        p >> arrived(number, size, max_tokens=1, flow=flow, band=band)
    told = turns(p, *range(1, len(waiting) + 1))
    gone, running = [], 0
    for _ in waiting:
        p >> done(running, 1)
        (sent,), p.pending = p.pending, []
        running = sent.request
        gone.append(running)
    assert [told[request].position for request in gone] == [*range(1, len(waiting) + 1)]
    waits = [told[request].eta for request in gone]
    assert waits == sorted(waits)


def test_the_last_of_its_flow_is_told_the_wait_that_it_would_be_refused_by():
    p = full()
    for number, flow in enumerate("abac", 1):
        p >> arrived(number, 50, max_tokens=1, flow=flow)
    asked = p.controller.explain(arrived(9, 50, max_tokens=1, flow="a"), p.now).predicted_wait
    p >> arrived(9, 50, max_tokens=1, flow="a")
    told = p.controller.turn(9, p.now)
    assert (told.position, told.eta) == (5, pytest.approx(asked))
    assert told.eta == pytest.approx(4 * 52 / 6)


def test_an_urgent_band_has_to_leave_a_reserved_share():
    p = full(bands={2: Band(reserved=0.5)})
    for number in range(1, 11):
        p >> arrived(number, 50, max_tokens=1)
    p >> arrived(11, 50, max_tokens=1, band=2)
    told = p.controller.turn(11, p.now)
    assert (told.position, told.eta) == (11, pytest.approx(2 * 52 / 6))


def test_places_move_up_when_somebody_leaves_and_the_next_look_shows_it():
    p = full()
    for number in (1, 2, 3):
        p >> arrived(number, 10, max_tokens=1)
    assert p.controller.turn(3, p.now).position == 3
    p >> Cancelled(1) >> at(1)
    assert p.controller.turn(3, p.now).position == 2


def test_who_does_not_wait_is_told_nothing_and_who_has_just_come_only_what_holds_it_back():
    p = full() >> arrived(1, 10, max_tokens=1)
    assert turns(p, 0, 1, 7)[1].position == 1
    assert [turns(p, 0, 7)[request] for request in (0, 7)] == [None, None]
    p >> arrived(2, 10, max_tokens=1)
    assert turns(p, 2)[2] == Turn(None, None, "sequences")
    p >> at(1)
    assert (turns(p, 2)[2].position, turns(p, 2)[2].rule) == (2, "sequences")
    p >> done(0, 1) << Dispatch(1, "a")
    assert turns(p, 2)[2].rule == "sequences"


def test_without_a_pace_only_the_place_is_told():
    p = Playbook(Policy(bounds=Bounds.HYSTERESIS)) >> up("a", seqs=1) >> arrived(0) << Dispatch(0, "a") >> arrived(1)
    assert (p.controller.turn(1, p.now).position, p.controller.turn(1, p.now).eta) == (1, None)
