"""What an autoscaler goes by: saturation, backlog, and what waits for a first endpoint."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import EndpointDown, Warmth
from gateway.admission.policy import Bounds
from tests.unit.admission.playbook import BLOCK, arrived, progress, up

ONE = {"max_tokens": 1}
"""A request that holds what its prompt takes, and one token more."""


def scaling(play):
    return play.controller.snapshot(play.now).scaling


def test_an_idle_pool_is_not_saturated_and_has_no_backlog(play):
    found = scaling(play() >> up("a"))
    assert (found.saturation, found.backlog_seconds, found.waiting_without_endpoint) == (0, 0, 0)


def test_it_is_one_when_the_cache_is_filled_as_far_as_the_gate_lets_it(play):
    p = play(kv_high=0.9) >> up("a") >> arrived(1, blocks=45) << Dispatch(1, "a") >> progress(r1=1)
    assert scaling(p).saturation == pytest.approx(0.5)
    p >> arrived(2, blocks=45) << Dispatch(2, "a") >> progress(r2=1)
    assert scaling(p).saturation == pytest.approx(1.0)


@pytest.mark.parametrize(("bounds", "target"), [(Bounds.BOTH, 0.9), (Bounds.FORECAST, 0.96)])
def test_with_a_forecast_what_runs_counts_with_its_predicted_peak(play, bounds, target):
    p = play(bounds=bounds) >> up("a") >> arrived(1, blocks=40, max_tokens=1 + 20 * BLOCK) << Dispatch(1, "a")
    peak = p.endpoint("a").forecast_usage
    assert peak > 0.5
    assert scaling(p).saturation == pytest.approx(peak / target)


def test_what_waits_counts_as_if_there_were_room_for_it(play):
    p = play(kv_high=0.9) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a") >> progress(r1=1)
    p >> arrived(2, blocks=90, **ONE)
    assert scaling(p).saturation == pytest.approx(2.0)


def test_a_second_endpoint_halves_it(play):
    p = play(kv_high=0.9) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a") >> progress(r1=1)
    assert scaling(p >> up("b")).saturation == pytest.approx(0.5)


def test_sequences_count_where_they_are_the_scarcer(play):
    p = play() >> up("a", seqs=2) >> arrived(1, n=2) << Dispatch(1, "a") >> arrived(2, n=2)
    assert scaling(p).saturation == pytest.approx(2.0)


def test_where_no_limit_is_known_nothing_is_said_of_it(play):
    p = play() >> up("a", blocks=None) >> arrived(1) << Dispatch(1, "a")
    assert scaling(p).saturation is None
    assert scaling(p >> up("b", seqs=8)).saturation is None


def test_the_backlog_is_the_service_that_waits_by_the_pace_of_the_pool(play):
    p = play() >> up("a", seqs=1) >> arrived(1, **ONE) << Dispatch(1, "a") >> arrived(2, **ONE) >> arrived(3, **ONE)
    assert scaling(p).backlog_seconds is None
    p >> Warmth(drained=(60.0, 10.0))  # tokens of service, in seconds
    assert scaling(p).backlog_seconds == pytest.approx(2 * 12 / 6)


def test_what_waits_for_a_first_endpoint_is_counted_apart(play):
    p = play() >> up("a") >> EndpointDown("a", "gone") >> arrived(1) >> arrived(2)
    found = scaling(p)
    assert (found.waiting_without_endpoint, found.saturation, found.backlog_seconds) == (2, None, None)
    p >> up("a") << Dispatch(1, "a") << Dispatch(2, "a")
    assert scaling(p).waiting_without_endpoint == 0
