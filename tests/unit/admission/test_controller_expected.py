"""What the core does while an engine starts that its requests wait for."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Capacity, EndpointDown, EndpointId, Expected, Tick
from gateway.admission.outcomes import Outcome
from tests.unit.admission.playbook import arrived, at, nothing, refused, up, wakes

DOWN = EndpointDown(EndpointId("a"), "stopped", Capacity(1000, 100))
KNOWN = {"ttl": 10.0, "no_endpoint_ttl": 5.0}


def test_a_request_waits_twice_as_long_as_its_engine_is_expected_to_take(play):
    script = play(**KNOWN) >> DOWN >> arrived(1) << wakes(5.0) >> Expected(20.0)
    script >> at(5.0) >> Tick() << wakes(40.0) >> at(40.0) >> Tick() << refused(1, Outcome.NO_ENDPOINT)


def test_a_short_start_leaves_the_time_as_it_is(play):
    script = play(**KNOWN) >> DOWN >> arrived(1) >> Expected(1.0)
    script >> at(5.0) >> Tick() << refused(1, Outcome.NO_ENDPOINT)


def test_it_goes_as_soon_as_its_engine_is_up(play):
    play(**KNOWN) >> DOWN >> arrived(1) >> Expected(20.0) >> at(19.0) >> up("a") << Dispatch(1, "a")


def test_who_waits_for_an_engine_that_does_not_start_is_refused_at_once(play):
    script = play(**KNOWN) >> DOWN >> arrived(1) >> Expected(None, failed=True) << refused(1, Outcome.NO_ENDPOINT)
    script >> arrived(2) << nothing


def test_who_is_served_elsewhere_is_not(play):
    (
        play(**KNOWN)
        >> up("b", seqs=1)
        >> arrived(1)
        << Dispatch(1, "b")
        >> arrived(2)
        >> Expected(None, failed=True)
        << nothing
    )


@pytest.mark.parametrize(("ready_at", "told"), [(50.0, 10.0), (30.0, 10.0)])
def test_retry_after_is_when_the_engine_is_expected_and_one_that_is_late_is_as_late_again(play, ready_at, told):
    script = play(ttl=10.0, no_endpoint_ttl=40.0) >> DOWN >> arrived(1) >> Expected(ready_at)
    (request,) = script.controller._queue
    assert script.controller._pool.retry_after.until_turn(request, Outcome.NO_ENDPOINT, 40.0) == told
