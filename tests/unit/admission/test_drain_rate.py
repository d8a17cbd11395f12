import pytest

from gateway.admission.drain_rate import DrainRate


def backlogged(per_second, seconds, cost=100.0):
    """A rate after so many dispatches a second of a queue that is never empty."""
    rate = DrainRate()
    rate.backlog(0.0, waiting=True)
    for step in range(1, int(per_second * seconds) + 1):
        rate.dispatched(cost, step / per_second)
    return rate


@pytest.mark.parametrize("per_second", [0.5, 1, 50])
@pytest.mark.parametrize("seconds", [10, 300])
def test_a_steady_rate_is_measured_early_and_late(per_second, seconds):
    assert backlogged(per_second, seconds).rate(seconds) == pytest.approx(100 * per_second, rel=0.2)


def test_it_is_unknown_until_somebody_waited_for_a_while():
    rate = DrainRate()
    rate.dispatched(100.0, 5.0)
    assert rate.rate(5.0) is None
    rate.backlog(6.0, waiting=True)
    rate.dispatched(100.0, 6.1)
    assert rate.rate(6.1) is None


def test_what_goes_while_nobody_waits_says_nothing():
    rate = backlogged(10, 60)
    rate.backlog(60.0, waiting=False)
    rate.dispatched(1e9, 61.0)
    assert rate.rate(10_000.0) == pytest.approx(1000, rel=0.1)


def test_a_queue_that_stands_still_is_slow():
    assert backlogged(10, 60).rate(120.0) < 100


def test_a_guess_counts_until_more_was_seen():
    rate = DrainRate()
    rate.guess(500.0)
    assert rate.rate(0.0) == 500.0
    rate.backlog(0.0, waiting=True)
    for step in range(1, 101):
        rate.dispatched(100.0, step / 10)
    assert rate.rate(10.0) == pytest.approx(1000, rel=0.1)
