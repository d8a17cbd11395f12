from itertools import pairwise

import pytest

from gateway.admission.drain_rate import CAP, FLOOR, UNKNOWN, DrainRate


def drained(per_second, seconds):
    """A rate after so many completions a second, always one in flight."""
    rate = DrainRate()
    rate.dispatched(0.0)
    for step in range(1, int(per_second * seconds) + 1):
        rate.dispatched(step / per_second)
        rate.left(step / per_second, completed=True)
    return rate


@pytest.mark.parametrize("per_second", [0.2, 1, 50])
@pytest.mark.parametrize("seconds", [10, 300])
def test_a_steady_rate_is_measured_early_and_late(per_second, seconds):
    assert drained(per_second, seconds).rate(seconds) == pytest.approx(per_second, rel=0.2)


def test_before_the_first_completion_it_is_unknown():
    rate = DrainRate()
    assert rate.rate(5.0) is None
    assert UNKNOWN <= rate.retry_after(100, 5.0) <= UNKNOWN * 1.25


def test_idle_time_does_not_make_it_slow():
    rate = drained(10, 60)
    rate.left(60.0, completed=True)
    assert rate.rate(10_000.0) == pytest.approx(10, rel=0.1)


def test_a_pool_that_stands_still_does():
    assert drained(10, 60).rate(120.0) < 1


def test_failures_are_no_completions():
    rate = drained(1, 60)
    before = rate.rate(60.0)
    for _ in range(50):
        rate.dispatched(60.0)
        rate.left(60.0, completed=False)
    assert rate.rate(60.0) == pytest.approx(before)


def test_retry_after_is_the_time_until_the_queue_ahead_is_gone():
    rate = drained(10, 300)
    assert 10 <= rate.retry_after(99, 300.0) * 1.001 <= 10 * 1.26


def test_it_keeps_to_its_bounds():
    rate = drained(10, 300)
    assert FLOOR <= rate.retry_after(0, 300.0) <= FLOOR * 1.25
    assert all(CAP / 1.25 <= rate.retry_after(10**6, 300.0) <= CAP for _ in range(100))


def test_those_refused_together_are_spread_evenly():
    rate = drained(10, 300)
    times = sorted(rate.retry_after(99, 300.0) for _ in range(100))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) < 3 * (times[-1] - times[0]) / len(gaps)
