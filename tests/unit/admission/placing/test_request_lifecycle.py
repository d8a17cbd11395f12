"""The table, walked: each pair of a state and an event, against the controller."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Back, Cancelled, Returned
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.request_lifecycle import TRANSITIONS, State, Trigger
from tests.unit.admission.playbook import arrived, done, refused, up

EVENTS = {
    Trigger.ARRIVED: arrived(1),
    Trigger.CANCELLED: Cancelled(1),
    Trigger.RETURNED: Returned(1, Back.BUSY),
    Trigger.FINISHED: done(1),
}


def script(play, state):
    """A script that has brought request 1 into a state; nothing else is in flight, and nothing can be dispatched."""
    p = play() >> up("a") >> up("held") >> arrived(8, blocks=95) << Dispatch(8, "a")
    p >> arrived(9, blocks=95) << Dispatch(9, "held")
    if state is State.NEW:
        return p
    if state is State.IN_FLIGHT:
        return p >> done(8) >> arrived(1) << Dispatch(1, "a")
    p >> arrived(1)
    return p >> Cancelled(1) if state is State.ENDED else p


def state_of(p):
    """Where request 1 is, as seen from outside."""
    state = p.controller.snapshot(p.now)
    if state.queue.depth:
        return State.WAITING
    return State.IN_FLIGHT if p.endpoint("a").in_flight and p.endpoint("a").held_blocks < 90 else State.NEW


@pytest.mark.parametrize("trigger", EVENTS)
@pytest.mark.parametrize("state", State)
def test_an_event_does_what_the_table_says_and_else_nothing(play, state, trigger):
    p = script(play, state)
    start = State.NEW if state is State.ENDED else state  # both are: no record
    assert state_of(p) is start
    after = TRANSITIONS.get((start, trigger), start)
    p >> EVENTS[trigger]
    assert state_of(p) is (State.NEW if after is State.ENDED else after)


def test_from_every_state_but_the_last_there_is_a_way_to_the_end():
    reached = {State.ENDED}
    for _ in State:
        reached |= {state for (state, _), after in TRANSITIONS.items() if after in reached}
    assert reached == set(State)


def test_nothing_leaves_the_end():
    assert not [trigger for state, trigger in TRANSITIONS if state is State.ENDED]


def test_a_refusal_ends_a_request_that_waits(play):
    p = play(ttl=1.0) >> up("a", blocks=5) >> arrived(1, blocks=6)
    p << refused(1, Outcome.CONTEXT_LENGTH_EXCEEDED)
    assert state_of(p) is State.NEW
