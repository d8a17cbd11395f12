"""What a request in flight holds, has had and pays for."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Tick
from gateway.admission.placing.in_flight import InFlight
from gateway.admission.tuning import TUNING
from tests.unit.admission.playbook import arrived, at, progress, scrape, up

RATE = 2 * TUNING.place_rate


@pytest.fixture
def p(play):
    """A request on an endpoint of 100 blocks that makes 40 tokens a second for each sequence; it is 20 s."""
    p = play() >> up("a", blocks=100) >> arrived(1, blocks=20, n=2) << Dispatch(1, "a")
    for second in range(21):
        p >> at(second) >> scrape("a", second, kv=0.2, running=2, waiting=0, tokens=2 * RATE * second)
    return p


@pytest.fixture
def flight(p) -> InFlight:
    (flight,) = p.controller._flights.values()
    return flight


def test_it_has_had_what_the_clock_says_or_more_if_that_was_told(p, flight):
    assert flight.generated(p.now) == 0, "the clock begins with its first token"
    p >> progress(r1=2)
    by_clock = flight.generated(p.now)
    assert flight.generated(p.now + 1) > by_clock
    p >> progress(r1=by_clock + 100)
    assert flight.generated(p.now) == by_clock + 100


def test_released_at_its_end_it_holds_nothing(p, flight):
    flight.release(5, p.now, aborted=False)
    assert (p.endpoint("a").sequences, flight.endpoint.delivering) == (0, 0)


def test_let_go_it_holds_nothing_and_the_clock_stands_still(p, flight):
    p >> progress(r1=2) >> at(30)
    made = flight.generated(p.now - 5)
    assert made > 2
    flight.let_go(p.now - 5, p.now)
    assert (p.endpoint("a").sequences, flight.endpoint.delivering) == (0, 1)
    assert flight.generated(p.now) == flight.generated(p.now + 60) == made
    flight.release(None, p.now + 60, aborted=False)
    assert flight.endpoint.delivering == 0


def test_let_go_without_a_token_it_pays_for_no_longer_than_its_engine_had_it(p, flight):
    until_then = flight.held(15, 0)
    flight.let_go(15, p.now)
    assert flight.held(p.now + 60, 0) == pytest.approx(until_then)


def test_its_place_is_worth_what_others_would_have_had_there_until_its_first_token(p, flight):
    place = TUNING.output_weight * 2 * flight.endpoint.decode_rate
    assert flight.endpoint.decode_rate == pytest.approx(RATE, rel=0.3)
    assert flight.held(p.now, 0) == pytest.approx(20 * place)
    p >> progress(r1=2) >> at(30)
    assert flight.held(p.now, 0) == pytest.approx(20 * place)


def test_tokens_that_were_not_seen_came_last_at_most_in_one_sequence(p, flight):
    tokens = int(flight.endpoint.decode_rate * 5)
    assert flight.held(p.now, tokens) == pytest.approx(flight.held(p.now - 5, None), rel=0.01)


def test_the_first_token_of_one_whose_tokens_come_in_groups_is_seen_too(play):
    """The clock expects that token before the first group comes."""
    p = play() >> up("a", blocks=100) >> scrape("a", 0.0, running=1, waiting=0, tokens=0)
    p >> at(1) >> scrape("a", 1.0, running=1, waiting=0, tokens=RATE)
    p >> arrived(1, blocks=20, streamed=False) << Dispatch(1, "a")
    for second in (2, 3):
        p >> at(second) >> Tick() >> progress(r1=16 * second)
    (flight,) = p.controller._flights.values()
    assert flight.held(60, 48) == flight.held(2, None) > 0


@pytest.mark.parametrize(
    ("streamed", "tokens", "paid"), [(True, None, 1), (True, 0, 1), (False, 0, 1), (False, None, 0)]
)
def test_a_place_has_a_price_before_any_token_was_seen(play, streamed, tokens, paid):
    """Else a flow that has all places from the start, and no token, keeps them for ever. Of a whole answer, some may
    have come: at a pace of 20 a second, it paid those of an engine that makes 2 tenfold.
    """
    p = play() >> up("a", blocks=100) >> arrived(1, blocks=20, n=2, streamed=streamed) << Dispatch(1, "a")
    (flight,) = p.controller._flights.values()
    assert flight.held(0.5, tokens) == paid * TUNING.output_weight * 2 * TUNING.place_rate * 0.5
    assert streamed or flight.held(0.5, 1) < 0
