import pytest

from gateway.admission.placing.gate import Gate


@pytest.fixture
def gate():
    return Gate(0.90, 0.80, poll_interval=1.0)


def test_it_is_open_at_first(gate):
    assert not gate.closed
    assert not gate.engine_waits(0.0)
    assert gate.busy_until < 0


def test_between_the_marks_it_stays_as_it_is(gate):
    for usage, closed in [(0.9, False), (0.91, True), (0.85, True), (0.8, True), (0.79, False), (0.85, False)]:
        gate.update(usage)
        assert gate.closed is closed, usage


def test_unknown_usage_closes_nothing(gate):
    gate.update(0.95)
    gate.update(None)
    assert not gate.closed


def test_the_engine_waits_from_the_second_sample_on(gate):
    gate.sample_waiting(5, 2, 1.0)
    assert not gate.engine_waits(1.0)
    gate.sample_waiting(5, 2, 2.0)
    assert gate.engine_waits(2.0)
    gate.sample_waiting(2, 2, 3.0)
    assert not gate.engine_waits(3.0)


def test_our_own_burst_on_its_way_in_does_not_count(gate):
    for second in range(5):
        gate.sample_waiting(30, 30, float(second))
        assert not gate.engine_waits(second)


def test_stale_samples_do_not_count(gate):
    gate.sample_waiting(5, 0, 1.0)
    gate.sample_waiting(5, 0, 2.0)
    assert gate.engine_waits(5.0)
    assert not gate.engine_waits(5.1)


def test_a_refusal_holds_it_for_a_second_or_until_a_scrape(gate):
    gate.note_busy(10.0, 3)
    assert (gate.busy_until, gate.full_with) == (11.0, 3)
    gate.note_busy(20.0, 2)
    gate.scraped(19.9)  # taken before the refusal: knows nothing of it
    assert (gate.busy_until, gate.full_with) == (21.0, 2)
    gate.scraped(20.1)
    assert gate.busy_until < 20.1
