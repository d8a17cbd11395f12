import pytest

from gateway.admission.account.decode_clock import DecodeClock
from tests.unit.admission.playbook import scrape


def observe(clock, time, running, tokens):
    clock.observe(scrape("a", time, running=running, tokens=tokens), time)


def test_it_ticks_as_fast_as_one_of_the_running_sequences_decodes():
    clock = DecodeClock(1.0)
    observe(clock, 10.0, running=4, tokens=1000)
    observe(clock, 11.0, running=4, tokens=1200)
    assert clock.rate == pytest.approx(50)
    start = clock.read(11.0)
    assert clock.read(13.0) - start == pytest.approx(100)


def test_a_new_rate_does_not_change_what_went_by():
    clock = DecodeClock(1.0)
    observe(clock, 0.0, running=1, tokens=0)
    observe(clock, 1.0, running=1, tokens=10)
    before = clock.read(2.0)
    observe(clock, 2.0, running=1, tokens=1010)
    assert clock.read(2.0) == pytest.approx(before)
    assert clock.rate > 100


def test_an_engine_that_hangs_stops_it():
    clock = DecodeClock(1.0)
    observe(clock, 0.0, running=2, tokens=0)
    observe(clock, 1.0, running=2, tokens=100)
    for time in range(2, 20):
        observe(clock, float(time), running=2, tokens=100)
    assert clock.rate < 0.01


@pytest.mark.parametrize(
    ("running", "tokens"),
    [(0, 500), (None, 500), (2, None), (2, 5)],
    ids=["idle at the end", "not exported", "no counter", "the counter fell: a restart"],
)
def test_what_cannot_be_measured_leaves_the_rate_as_it_was(running, tokens):
    clock = DecodeClock(1.0)
    observe(clock, 0.0, running=2, tokens=0)
    observe(clock, 1.0, running=2, tokens=100)
    observe(clock, 2.0, running=running, tokens=tokens)
    assert clock.rate == pytest.approx(50)


def test_it_learns_how_long_a_first_token_takes_and_never_less_than_nothing():
    clock = DecodeClock(1.0)
    for _ in range(100):
        clock.learn_delay(20.0)
    assert clock.first_token_delay == pytest.approx(20, rel=0.01)
    for _ in range(100):
        clock.learn_delay(-50.0)
    assert 0 <= clock.first_token_delay < 0.01


def test_a_counter_that_leaps_is_no_rate():
    """Else the clock would come to readings where one more token is lost in rounding."""
    clock = DecodeClock(1.0)
    for second, tokens in enumerate((0, 100, 1e15, 1e15 + 100)):
        observe(clock, float(second), running=2, tokens=tokens)
    assert clock.rate == pytest.approx(50)
