import pytest

from gateway.admission.account.drain_rate import DrainRate
from gateway.admission.tuning import TUNING


def pressed(per_second, seconds, cost=100.0):
    """A rate after so many ends a second, while somebody always waits."""
    rate = DrainRate()
    for step in range(int(per_second * seconds) + 1):
        rate.pressed(step / per_second)
        rate.completed(cost if step else 0.0, step / per_second)
    return rate


@pytest.mark.parametrize("per_second", [1, 2, 50])
@pytest.mark.parametrize("seconds", [10, 300])
def test_a_steady_rate_is_measured_early_and_late(per_second, seconds):
    assert pressed(per_second, seconds).rate(seconds) == pytest.approx(100 * per_second, rel=0.2)


def test_it_is_unknown_until_the_pool_was_pressed_for_a_while():
    rate = DrainRate()
    rate.completed(100.0, 5.0)
    assert rate.rate(5.0) is None
    rate.pressed(6.0)
    rate.completed(100.0, 6.1)
    assert rate.rate(6.1) is None


def test_what_ends_while_nobody_waits_says_nothing():
    rate = pressed(10, 60)
    rate.completed(1e9, 60.1 + TUNING.drain_pressed)
    assert rate.rate(10_000.0) == pytest.approx(1000, rel=0.15)


def test_a_queue_that_stands_still_is_slow():
    rate = pressed(10, 60)
    for second in range(60, 121):
        rate.pressed(float(second))
    assert rate.rate(120.0) < 100


def test_asking_leaves_no_trace():
    one, other = pressed(3, 20), pressed(3, 20)
    one.rate(20.2)
    for rate in (one, other):
        rate.completed(70.0, 20.5)
    assert one.rate(21.0) == other.rate(21.0)


def test_another_core_goes_on_from_what_was_measured():
    before, after = pressed(3, 20), DrainRate()
    after.recall(before.measured(20.2), 500.2)
    assert after.rate(500.2) == before.rate(20.2)
    for rate, now in ((before, 20.2), (after, 500.2)):
        rate.pressed(now)
        rate.completed(70.0, now + 0.5)
    assert after.rate(501.0) == pytest.approx(before.rate(21.0))


def test_what_was_measured_here_counts_more():
    here = pressed(3, 20)
    rate = here.rate(20.0)
    here.recall((1e9, 60.0), 20.0)
    assert here.rate(20.0) == rate
