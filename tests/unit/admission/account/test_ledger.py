"""The account must be exact for what is seen, and near the truth for what is not."""

import pytest

from gateway.admission.account.decode_clock import DecodeClock
from gateway.admission.account.footprint import Footprint
from gateway.admission.account.ledger import Ledger
from gateway.admission.account.prefill import PrefillRate
from gateway.admission.events import Arrived, Capacity, Demand
from gateway.admission.tuning import TUNING
from tests.unit.admission.playbook import scrape

BLOCK = 16


class Bench:
    """A ledger whose endpoint decodes at a known rate."""

    def __init__(self, rate: float = 0.0):
        self.clock = DecodeClock(1.0)
        self.ledger = Ledger(self.clock, PrefillRate(), BLOCK)
        if rate:
            self.clock.observe(scrape("a", -2.0, running=1, tokens=0), -2.0)
            self.clock.observe(scrape("a", -1.0, running=1, tokens=rate), -1.0)

    def reserve(self, *prompts, n=1, max_tokens=1000, now=0.0, streamed=True):
        demand = Demand(prompts, max_tokens, n)
        footprint = Footprint(demand, BLOCK, shares_prefix=True)
        arrival = Arrived(1, demand, streamed=streamed)
        return self.ledger.reserve(arrival, footprint, now)

    def held_at(self, now):
        self.ledger.advance(now)
        return self.ledger.held


def test_a_reservation_holds_its_prompt_and_the_first_token():
    bench = Bench()
    bench.reserve(32)
    assert (bench.ledger.held, bench.ledger.confirmed) == (3, 0)
    assert (bench.ledger.sequences, bench.ledger.unconfirmed_sequences) == (1, 1)


def test_the_first_token_confirms_it():
    bench = Bench()
    reservation = bench.reserve(32, n=2)
    bench.ledger.progress(reservation, 1, 0.5)
    assert bench.ledger.confirmed == bench.ledger.held == 1 + 2 * 2
    assert bench.ledger.unconfirmed_sequences == 0


def test_tokens_of_a_group_are_spread_over_its_sequences():
    bench = Bench()
    reservation = bench.reserve(10, n=4)
    bench.ledger.progress(reservation, 4 * 6, 0.5)
    assert bench.ledger.held == 4
    bench.ledger.progress(reservation, 4 * 6 + 1, 0.6)
    assert bench.ledger.held == 8


def test_progress_never_goes_back_nor_beyond_max_tokens():
    bench = Bench()
    reservation = bench.reserve(16, max_tokens=32)
    bench.ledger.progress(reservation, 500, 0.5)
    assert bench.ledger.held == 3
    bench.ledger.progress(reservation, 2, 0.6)
    assert bench.ledger.held == 3


def test_a_release_gives_everything_back():
    bench = Bench(rate=50)
    kept, gone = bench.reserve(100), bench.reserve(64, n=3)
    bench.ledger.progress(gone, 90, 0.5)
    bench.ledger.release(gone, 90, 0.6)
    assert bench.ledger.held == kept.held == 7
    assert (bench.ledger.confirmed, bench.ledger.sequences, len(bench.ledger)) == (0, 1, 1)
    assert bench.held_at(100.0) == 7, "the clock must not count for a request that is gone"


def test_a_request_that_reports_nothing_grows_with_the_decode_rate_up_to_its_limit():
    bench = Bench(rate=10)
    bench.reserve(16, max_tokens=100, streamed=False)
    assert bench.held_at(1.5) == 2
    assert bench.held_at(1.7) == 3  # 17 tokens
    assert bench.held_at(5.0) == 1 + 4
    assert bench.held_at(1000.0) == 1 + 7


def test_it_counts_as_confirmed_once_its_first_token_is_due():
    bench = Bench(rate=10)
    for _ in range(200):
        bench.clock.learn_delay(20.0)  # two seconds
    bench.reserve(16, streamed=False)
    bench.ledger.advance(1.9)
    assert bench.ledger.unconfirmed_sequences == 1
    bench.ledger.advance(2.2)
    assert bench.ledger.unconfirmed_sequences == 0
    assert bench.ledger.confirmed == bench.ledger.held == 2


def test_the_delay_of_first_tokens_is_learned_from_what_blind_requests_used():
    bench = Bench(rate=10)
    for start in range(100):
        reservation = bench.reserve(16, streamed=False, now=float(start * 10))
        bench.ledger.release(reservation, 50, start * 10 + 8.0)  # 80 tokens' time for 50 tokens
    assert bench.clock.first_token_delay == pytest.approx(30, rel=0.05)


def test_a_steady_stream_is_counted_by_what_is_seen_not_by_the_clock():
    bench = Bench(rate=50)
    reservation = bench.reserve(16)
    bench.ledger.progress(reservation, 1, 0.0)
    for step in range(1, 201):  # 10 % slower than the mean
        now = step * 0.05
        bench.ledger.progress(reservation, 1 + int(45 * now), now)
        assert bench.held_at(now) == 1 + -(-(1 + int(45 * now)) // BLOCK)


def test_a_stream_whose_tokens_come_merged_is_counted_by_the_clock_at_its_pace():
    bench = Bench(rate=50)
    reservation = bench.reserve(16)
    bench.ledger.progress(reservation, 1, 0.0)
    for step in range(1, 101):  # each delta carries ten tokens
        bench.ledger.progress(reservation, 1 + step * 5 // 10, step * 0.1)
        bench.ledger.advance(step * 0.1)
    truth = 1 + 501 / BLOCK
    assert truth * TUNING.stream_pace * 0.85 < bench.ledger.held <= truth


def test_a_stream_without_a_token_is_not_counted_by_the_clock():
    bench = Bench(rate=50)
    bench.reserve(16)
    assert bench.held_at(60.0) == 2
    assert bench.ledger.unconfirmed_sequences == 1


def test_an_aborted_request_counts_in_all_but_not_as_confirmed():
    bench = Bench(rate=50)
    reservation = bench.reserve(16)
    bench.ledger.progress(reservation, 1, 0.0)
    bench.ledger.abort(reservation, 1.0)
    assert (bench.ledger.held, bench.ledger.confirmed, bench.ledger.aborting) == (2, 0, 1)
    assert bench.ledger.next_abort_expiry == 2.0
    bench.ledger.advance(1.99)
    assert bench.ledger.held == 2
    bench.ledger.advance(2.0)
    assert (bench.ledger.held, bench.ledger.aborting, bench.ledger.sequences) == (0, 0, 0)


@pytest.mark.parametrize("at", [0.9, 1.0, 127.69293180267664])
def test_an_aborted_request_is_gone_at_the_very_time_that_is_told(at):
    bench = Bench()
    bench.ledger.abort(bench.reserve(16), at)
    bench.ledger.advance(bench.ledger.next_abort_expiry)
    assert bench.ledger.aborting == 0


def test_an_aborted_request_grows_no_more():
    bench = Bench(rate=100)
    reservation = bench.reserve(16, streamed=False)
    assert bench.held_at(0.5) == 1 + 4
    bench.ledger.abort(reservation, 0.5)
    assert bench.held_at(1.4) == 1 + 4


def test_only_progress_that_is_news_releases_an_aborted_request():
    bench = Bench()
    gone, other = bench.reserve(16), bench.reserve(16)
    bench.ledger.progress(other, 5, 0.9)
    bench.ledger.abort(gone, 1.0)
    bench.ledger.progress(other, 5, 1.2)
    assert bench.ledger.aborting == 1
    bench.ledger.progress(other, 6, 1.3)
    assert bench.ledger.aborting == 0


def test_another_block_size_is_counted_anew():
    bench = Bench()
    first, second = bench.reserve(100), bench.reserve(40)
    bench.ledger.progress(first, 50, 0.5)
    bench.ledger.rebase(Capacity(1000, 100, 64))
    assert (bench.ledger.held, bench.ledger.confirmed) == (3 + 1, 3)
    bench.ledger.progress(first, 100, 0.6)
    assert bench.ledger.held == 4 + 1
    bench.ledger.release(first, 100, 0.7)
    bench.ledger.release(second, 0, 0.7)
    assert bench.ledger.held == bench.ledger.confirmed == 0


def test_memory_stays_bounded_where_the_clock_never_ticks():
    bench = Bench()
    for _ in range(5000):
        reservation = bench.reserve(16, streamed=False)
        bench.ledger.release(reservation, 5, 0.0)
    assert len(bench.ledger._checks) < 200


def test_who_wants_many_tokens_in_an_event_is_counted_by_the_clock_in_full():
    bench = Bench(rate=100)
    merged, streamed = bench.reserve(16, streamed=False), bench.reserve(16)
    for reservation in (merged, streamed):
        bench.ledger.progress(reservation, 1, 0.0)
    assert bench.ledger.tokens_so_far(merged, 2.0) == 201
    assert bench.ledger.tokens_so_far(streamed, 2.0) == 1 + TUNING.stream_pace * 200


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_request_has_come_to_is_what_was_seen_or_what_the_clock_tells(streamed):
    bench = Bench(rate=100)
    reservation = bench.reserve(16, n=2, max_tokens=150, streamed=streamed)
    bench.ledger.progress(reservation, 60, 0.0)
    assert bench.ledger.tokens_so_far(reservation, 0.0) == 60
    assert 2 * 100 < bench.ledger.tokens_so_far(reservation, 1.0) <= 2 * (30 + 100)
    assert bench.ledger.tokens_so_far(reservation, 60.0) == 2 * 150


def test_a_stream_without_a_token_has_come_to_nothing():
    bench = Bench(rate=100)
    assert bench.ledger.tokens_so_far(bench.reserve(16), 5.0) == 0
    assert bench.ledger.tokens_so_far(bench.reserve(16, streamed=False), 0.0) == 0
