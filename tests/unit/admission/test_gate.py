import pytest

from gateway.admission.gate import Closed, Gate


@pytest.fixture
def gate():
    return Gate(0.90, 0.80, poll_interval=1.0)


def test_it_is_open_at_first(gate):
    assert not gate.closed(0)
    assert gate.reasons(0) == ()


def test_between_the_marks_it_stays_as_it_is(gate):
    for usage, closed in [(0.9, False), (0.91, True), (0.85, True), (0.8, True), (0.79, False), (0.85, False)]:
        gate.update(usage)
        assert bool(gate.closed(0)) is closed, usage


def test_unknown_usage_closes_nothing(gate):
    gate.update(0.95)
    gate.update(None)
    assert not gate.closed(0)


def test_requests_that_wait_close_it_at_the_second_sample(gate):
    gate.sample_waiting(5, 2, 1.0)
    assert not gate.closed(1.0)
    gate.sample_waiting(5, 2, 2.0)
    assert gate.reasons(2.0) == (Closed.ENGINE_WAITING,)
    gate.sample_waiting(2, 2, 3.0)
    assert not gate.closed(3.0)


def test_our_own_burst_on_its_way_in_does_not_close_it(gate):
    for second in range(5):
        gate.sample_waiting(30, 30, float(second))
        assert not gate.closed(second)


def test_stale_samples_do_not_keep_it_closed(gate):
    gate.sample_waiting(5, 0, 1.0)
    gate.sample_waiting(5, 0, 2.0)
    assert gate.closed(5.0)
    assert not gate.closed(5.1)


def test_a_refusal_holds_it_for_a_second_or_until_a_scrape(gate):
    gate.hold(10.0)
    assert gate.reasons(10.9) == (Closed.BUSY,)
    assert not gate.closed(11.0)
    gate.hold(20.0)
    gate.scraped(19.9)  # taken before the refusal: knows nothing of it
    assert gate.closed(20.5)
    gate.scraped(20.1)
    assert not gate.closed(20.5)


def test_all_reasons_are_told(gate):
    gate.update(0.95)
    gate.sample_waiting(5, 0, 1.0)
    gate.sample_waiting(5, 0, 2.0)
    gate.hold(2.0)
    assert gate.reasons(2.0) == (Closed.KV, Closed.ENGINE_WAITING, Closed.BUSY)
