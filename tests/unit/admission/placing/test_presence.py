"""The table, walked: each pair of a presence and an event, against the controller."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import EndpointDown, EndpointGone
from gateway.admission.placing.presence import TRANSITIONS, Presence
from tests.unit.admission.playbook import arrived, done, up

EVENTS = [up("a"), EndpointDown("a", "killed"), EndpointGone("a")]
TO = dict(zip(Presence, EVENTS, strict=True))
"""The event that leads to a presence."""


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("before", Presence)
def test_an_event_does_what_the_table_says_and_else_nothing(play, before, event):
    p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> TO[before] >> event
    after = TRANSITIONS.get((before, type(event)), before)
    reason = {Presence.LIVE: None, Presence.DOWN: "killed", Presence.GONE: "removed"}[after]
    assert (p.endpoint("a").up, p.endpoint("a").reason) == (after is Presence.LIVE, reason)
    p >> done(1)
    assert [shown.id for shown in p.controller.snapshot(p.now).endpoints] == ["a"] * (after is not Presence.GONE)


def test_one_that_is_down_says_why_anew(play):
    p = play() >> up("a") >> EndpointDown("a", "hung") >> EndpointDown("a", "killed")
    assert p.endpoint("a").reason == "killed"


def test_every_presence_can_be_left_but_no_event_brings_back_what_is_unknown(play):
    assert {before for (before, _), after in TRANSITIONS.items() if after is not before} == set(Presence)
    p = play() >> EndpointDown("a", "killed") >> EndpointGone("a")
    assert p.controller.snapshot(p.now).endpoints == ()
