"""The product, as scripts: what the core is told, and what it answers."""

from itertools import count, islice

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import (
    FRONT_BITS,
    Back,
    Cancelled,
    EndpointDown,
    EndpointGone,
    Finished,
    Progress,
    Returned,
    ShutdownStarted,
    Tick,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Mode
from gateway.admission.tuning import TUNING
from tests.unit.admission.playbook import (
    aborted,
    arrived,
    at,
    done,
    nothing,
    progress,
    refused,
    scrape,
    up,
    wakes,
)


class TestRoom:
    def test_a_request_goes_at_once_where_there_is_room(self, play):
        play() >> up("a") >> arrived(1) << Dispatch(1, "a")

    def test_what_would_exceed_the_high_mark_waits_for_room(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=50) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=40) << Dispatch(2, "a") >> progress(r2=1)  # 90 of 100: just on the mark
        p >> arrived(3, blocks=1) << nothing
        p >> done(2) << Dispatch(3, "a")

    def test_a_cold_endpoint_beside_a_warm_one_gets_one_request_until_it_generates(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=10) << Dispatch(1, "a") >> progress(r1=1)
        p >> scrape("a", 0.0, tokens=1) >> up("b", blocks=100)
        assert p.endpoint("b").closed_by == ()
        p >> arrived(2, blocks=1) << Dispatch(2, "b") >> arrived(3, blocks=1) << Dispatch(3, "a")
        assert p.endpoint("b").closed_by == ("cold",)
        p >> progress(r2=1) >> scrape("b", 0.0, tokens=1) >> arrived(4, blocks=1) << Dispatch(4, "b")

    def test_an_endpoint_that_fails_on_all_it_gets_is_spared_while_another_is_sound(self, play):
        """It is the emptiest: it would get all that come, and each of them would fail."""
        p = play() >> up("a", blocks=100) >> up("b", blocks=100) >> arrived(9, blocks=50) << Dispatch(9, "a")
        p >> progress(r9=1)
        for number in range(1, 4):
            p >> arrived(number, blocks=1) << Dispatch(number, "b") >> Returned(number, Back.FAILED)
            p << Dispatch(number, "a") >> progress(**{f"r{number}": 1}) >> done(number)
        assert p.endpoint("b").closed_by == ("failing",)
        p >> arrived(4, blocks=1) << Dispatch(4, "a") >> progress(r4=1)
        p >> arrived(5, blocks=45) << nothing  # a place is better than another failure
        p >> at(TUNING.failing_span) >> Tick() << Dispatch(5, "b") >> arrived(6, blocks=1) << Dispatch(6, "a")
        p >> progress(r6=1) >> Returned(5, Back.FAILED) << nothing
        p >> at(2 * TUNING.failing_span) >> arrived(7, blocks=1) << Dispatch(7, "b")
        assert p.endpoint("b").closed_by == ("failing",), "it is tried with one"
        p >> progress(r7=1)
        assert p.endpoint("b").closed_by == ()
        p >> done(9) << Dispatch(5, "a")

    def test_a_bad_request_that_failed_elsewhere_does_not_keep_an_endpoint_out(self, play):
        """It waits for its second try, so one every five seconds would be the only ones that try the endpoint."""
        p = play() >> up("a", blocks=100) >> arrived(9) << Dispatch(9, "a") >> progress(r9=1) >> up("b", blocks=100)
        for number in range(TUNING.failing_after):
            p >> arrived(number) << Dispatch(number, "b") >> Finished(number, Verdict.FAILED)
        p >> arrived(5) << Dispatch(5, "a") >> Returned(5, Back.FAILED) << nothing
        p >> at(TUNING.failing_span) >> Tick() << Dispatch(5, "b") >> Returned(5, Back.FAILED)
        p << refused(5, Outcome.UPSTREAM_ERROR) >> arrived(6) << Dispatch(6, "b")

    def test_an_endpoint_that_lacks_what_some_requests_name_stays_open_to_all_others(self, play):
        p = play() >> up("a") >> up("b")
        for number in range(1, 2 + TUNING.failing_after):
            p >> arrived(number) << Dispatch(number, "a") >> Returned(number, Back.LACKING)
            p << Dispatch(number, "b") >> done(number)
        p >> arrived(9) << Dispatch(9, "a")

    def test_a_request_that_fails_elsewhere_does_not_go_back_to_an_endpoint_that_lacks_what_it_names(self, play):
        p = play() >> up("a") >> up("b") >> up("c") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.LACKING) << Dispatch(1, "b") >> Returned(1, Back.FAILED) << Dispatch(1, "c")

    def test_the_first_token_of_an_endpoint_that_failed_lets_the_next_request_go_at_once(self, play):
        p = play() >> up("a", seqs=1) >> up("b") >> arrived(1) << Dispatch(1, "a")
        for number in range(2, 2 + TUNING.failing_after):
            p >> arrived(number) << Dispatch(number, "b") >> Finished(number, Verdict.FAILED)
        p >> at(TUNING.failing_span) >> arrived(8) << Dispatch(8, "b") >> arrived(9) << nothing
        p >> progress(r8=1) << Dispatch(9, "b")

    def test_streams_from_before_speak_for_an_endpoint_that_turns_all_away_only_at_first(self, play):
        p = play() >> up("a") >> arrived(9) << Dispatch(9, "a") >> progress(r9=1) >> up("b", seqs=1)
        p >> arrived(8) << Dispatch(8, "b")  # it holds the only place of the sound one until its end
        p >> at(1.0)
        for number in range(TUNING.failing_after):
            p >> arrived(number) << Dispatch(number, "a") >> Finished(number, Verdict.FAILED)
        p >> progress(r9=2)
        assert p.endpoint("a").closed_by == (), "it may be some bad requests, with others on their way"
        p >> at(1.0 + TUNING.failing_span)
        for number in range(10, 10 + TUNING.failing_after):
            p >> arrived(number) << Dispatch(number, "a") >> Finished(number, Verdict.FAILED) >> progress(r9=number)
        assert p.endpoint("a").closed_by == ("failing",)
        p >> at(p.now + TUNING.failing_span) >> arrived(20) << Dispatch(20, "a") >> arrived(21) << nothing
        p >> at(p.now + TUNING.failing_span) >> Tick() << Dispatch(21, "a") >> arrived(22) << nothing
        p >> progress(r21=1) << Dispatch(22, "a")

    def test_endpoints_that_all_fail_are_not_spared(self, play):
        p = play() >> up("a", blocks=100) >> up("b", blocks=100)
        for number, endpoint in enumerate(["a"] * TUNING.failing_after + ["b"] * TUNING.failing_after):
            p >> arrived(number, blocks=1) << Dispatch(number, endpoint) >> Finished(number, Verdict.FAILED)
        assert p.endpoint("a").closed_by == p.endpoint("b").closed_by == ()

    def test_nobody_overtakes_the_head_of_the_queue(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=60) << Dispatch(1, "a")
        p >> arrived(2, blocks=60) << nothing
        p >> arrived(3, blocks=1) << nothing
        p >> done(1) << Dispatch(2, "a") >> progress(r2=1) << Dispatch(3, "a")

    def test_streams_without_a_token_may_hold_a_third_of_the_cache(self, play):
        p = play() >> up("a", blocks=90) >> arrived(1, blocks=20) << Dispatch(1, "a")
        p >> arrived(2, blocks=10) << Dispatch(2, "a") >> arrived(3, blocks=1) << nothing
        assert p.endpoint("a").closed_by == ("prefill",)
        p >> progress(r2=1) << Dispatch(3, "a")

    def test_a_prompt_larger_than_that_goes_when_no_other_is_in_prefill(self, play):
        p = play() >> up("a", blocks=90) >> arrived(1, blocks=5) << Dispatch(1, "a")
        p >> arrived(2, blocks=40) << nothing >> progress(r1=1) << Dispatch(2, "a")

    def test_what_does_not_stream_is_not_waited_for(self, play):
        p = play() >> up("a", blocks=90) >> arrived(1, blocks=30, streamed=False) << Dispatch(1, "a")
        p >> arrived(2, blocks=30, streamed=False) << Dispatch(2, "a")

    @pytest.mark.parametrize("ending", [done(1), aborted(1), Returned(1, Back.FAILED)])
    def test_a_stream_that_ends_without_a_token_holds_nobody_back(self, play, ending):
        p = play() >> up("a", blocks=90) >> up("b", blocks=90) >> arrived(1, blocks=29) << Dispatch(1, "a")
        p >> arrived(2, blocks=30) << Dispatch(2, "b") >> arrived(3, blocks=2) << nothing
        p >> ending
        assert max(command.request for command in p.pending) == 3
        p.pending.clear()

    def test_a_lower_band_goes_first(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2, blocks=80, band=1) >> arrived(3, blocks=80, band=0) << nothing
        p >> done(1) << Dispatch(3, "a")
        p >> done(3) << Dispatch(2, "a")

    def test_an_idle_endpoint_takes_one_request_beyond_its_high_mark_and_nothing_beside_it(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=95) << Dispatch(1, "a")
        p >> arrived(2, blocks=1) << nothing
        p >> done(1) << Dispatch(2, "a")

    def test_a_group_larger_than_the_endpoint_waits_until_it_is_idle(self, play):
        p = play() >> up("a", blocks=100, seqs=4) >> arrived(1) << Dispatch(1, "a")
        p >> arrived(2, blocks=2, n=200) << nothing
        p >> done(1) << Dispatch(2, "a")

    def test_the_sequence_limit_counts_every_sequence_of_a_group(self, play):
        p = play() >> up("a", seqs=4) >> arrived(1, n=4) << Dispatch(1, "a") >> arrived(2) << nothing
        p >> done(1) << Dispatch(2, "a")
        assert p.endpoint("a").sequences == 1

    def test_a_group_needs_one_free_place_to_begin(self, play):
        """Else places would stay empty until all that it needs are."""
        p = play() >> up("a", seqs=4) >> arrived(1, n=3) << Dispatch(1, "a") >> arrived(2, n=16) << Dispatch(2, "a")
        p >> arrived(3) << nothing >> done(1) << nothing >> done(2) << Dispatch(3, "a")

    def test_tokens_that_go_by_take_room(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=50) << Dispatch(1, "a")
        p >> progress(r1=16 * 39) >> arrived(2, blocks=1) << Dispatch(2, "a")
        p >> progress(r1=16 * 40) >> arrived(3, blocks=1) << nothing

    def test_growth_alone_closes_the_gate_with_nobody_waiting(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=50) << Dispatch(1, "a")
        p >> progress(r1=16 * 41) << nothing
        assert p.endpoint("a").closed_by == ("gate",)

    def test_the_gate_closes_above_the_high_mark_and_opens_only_below_the_low_one(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=70) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=10) << Dispatch(2, "a") >> progress(r2=1) >> arrived(3, blocks=4) << Dispatch(3, "a")
        p >> progress(r1=16 * 7) >> arrived(4, blocks=1) << nothing  # 91
        assert p.endpoint("a").closed_by == ("gate",)
        p >> done(3) << nothing  # 87: below the high mark, above the low one
        p >> done(2) << Dispatch(4, "a")  # 77
        assert p.endpoint("a").gate_open


class TestChoice:
    def test_the_least_used_endpoint_gets_it(self, play):
        p = play() >> up("a") >> up("b") >> arrived(1, blocks=5) << Dispatch(1, "a")
        p >> arrived(2, blocks=3) << Dispatch(2, "b") >> arrived(3, blocks=1) << Dispatch(3, "b")

    def test_a_small_request_passes_a_large_one_only_on_an_endpoint_that_the_large_one_cannot_use(self, play):
        p = play() >> up("big", blocks=1000, length=10_000) >> up("small", length=100)
        p >> arrived(1, 9000) << Dispatch(1, "big") >> arrived(2, 9000) << nothing
        p >> arrived(3, 50) << Dispatch(3, "small")
        p >> done(1) << Dispatch(2, "big")

    def test_a_large_head_is_not_starved_by_small_ones_that_fit_its_endpoint_too(self, play):
        p = play() >> up("big", blocks=100, length=2000) >> up("small", blocks=100, length=100)
        p >> arrived(1, blocks=60) << Dispatch(1, "big") >> arrived(2, blocks=60) << nothing
        for request in range(3, 18):
            p >> arrived(request, blocks=6) << Dispatch(request, "small") >> progress(**{f"r{request}": 1})
        p >> arrived(18, blocks=6) << nothing  # the big one has room, but keeps it for the head
        p >> done(1) << Dispatch(2, "big") >> progress(r2=1) << Dispatch(18, "big")

    def test_a_prompt_that_fits_no_known_endpoint_is_refused(self, play):
        p = play() >> up("a", length=100) >> up("b", length=200)
        p >> arrived(1, 199) << Dispatch(1, "b")
        p >> arrived(2, 200) << refused(2, Outcome.CONTEXT_LENGTH_EXCEEDED)

    def test_a_prompt_of_more_blocks_than_an_endpoint_has_does_not_fit_it(self, play):
        play() >> up("a", blocks=10) >> arrived(1, blocks=11) << refused(1, Outcome.CONTEXT_LENGTH_EXCEEDED)

    def test_a_prompt_that_fits_only_an_endpoint_that_is_down_waits_for_it(self, play):
        p = play() >> up("big", length=1000) >> up("small", length=100) >> EndpointDown("big", "killed")
        p >> arrived(1, 500) << nothing >> arrived(2, 50) << Dispatch(2, "small")
        p >> up("big", length=1000) << Dispatch(1, "big")

    def test_when_the_last_endpoint_that_fits_goes_away_for_good_its_waiters_are_refused(self, play):
        p = play() >> up("big", length=1000) >> up("small", length=100) >> EndpointDown("big", "killed")
        p >> arrived(1, 500) >> EndpointGone("big") << refused(1, Outcome.CONTEXT_LENGTH_EXCEEDED)

    def test_before_any_endpoint_is_known_everything_waits(self, play):
        play() >> arrived(1, 10**6) << nothing >> up("a") << refused(1, Outcome.CONTEXT_LENGTH_EXCEEDED)


class TestWaiting:
    def test_a_full_queue_refuses_by_requests(self, play):
        p = play(max_requests=1) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2, blocks=90) << nothing
        p >> arrived(3) << refused(3, Outcome.QUEUE_FULL)

    def test_a_full_queue_refuses_by_bytes(self, play):
        p = play(max_bytes=100) >> up("a") >> arrived(1, blocks=90, size=500) << Dispatch(1, "a")
        p >> arrived(2, blocks=90, size=60) << nothing
        p >> arrived(3, size=41) << refused(3, Outcome.QUEUE_FULL)
        p >> Cancelled(2) << nothing >> arrived(4, blocks=90, size=100) << nothing

    def test_a_queue_of_none_still_dispatches(self, play):
        p = play(max_requests=0) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2) << refused(2, Outcome.QUEUE_FULL)

    def test_a_full_queue_has_room_for_a_more_urgent_band(self, play):
        p = play(max_requests=2) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2, band=5, blocks=90, flow="batch") << nothing >> arrived(3, band=5, flow="batch") << nothing
        p >> arrived(4, band=0, blocks=80, flow="batch") << refused(3, Outcome.QUEUE_FULL)
        p >> arrived(5, band=9) << refused(5, Outcome.QUEUE_FULL)
        p >> done(1) << Dispatch(4, "a")

    def test_of_a_full_queue_the_flow_that_fills_the_most_leaves_room_for_another(self, play):
        p = play(max_requests=5) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        for request in range(2, 7):
            p >> arrived(request, blocks=90, flow="many") << nothing
        p >> arrived(7, flow="many") << refused(7, Outcome.QUEUE_FULL)
        p >> arrived(8, blocks=80, flow="b") << refused(6, Outcome.QUEUE_FULL)
        p >> arrived(9, blocks=80, flow="b") << refused(5, Outcome.QUEUE_FULL)
        p >> arrived(10, blocks=80, flow="b") << refused(10, Outcome.QUEUE_FULL)
        p >> arrived(11, blocks=80, flow="c") << refused(4, Outcome.QUEUE_FULL)

    def test_of_a_queue_full_of_bytes_the_largest_bodies_leave_room(self, play):
        p = play(max_bytes=100) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2, blocks=90, size=50, flow="large") << nothing
        p >> arrived(3, blocks=90, size=40, flow="large") << nothing
        for request in range(4, 14):
            p >> arrived(request, blocks=90, size=1, flow="small") << nothing
        p >> arrived(14, blocks=90, size=30, flow="b") << refused(3, Outcome.QUEUE_FULL)
        p >> arrived(15, blocks=90, size=60, flow="c") << refused(15, Outcome.QUEUE_FULL)

    def test_with_a_live_endpoint_the_ttl_ends_in_a_timeout(self, play):
        p = play(ttl=10) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> at(1) >> arrived(2) << nothing >> at(10.9) >> Tick() << nothing
        p >> at(11) >> Tick() << refused(2, Outcome.QUEUE_TIMEOUT)

    def test_without_an_endpoint_its_own_ttl_counts(self, play):
        p = play(ttl=10, no_endpoint_ttl=5) >> at(1) >> arrived(1) << nothing
        p >> at(6) >> Tick() << refused(1, Outcome.NO_ENDPOINT)

    def test_when_the_last_endpoint_goes_that_clock_starts_anew(self, play):
        p = play(ttl=10, no_endpoint_ttl=5) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> at(1) >> arrived(2) << nothing >> at(9) >> EndpointDown("a", "killed") << nothing
        p >> at(13.9) >> Tick() << nothing >> at(14) >> Tick() << refused(2, Outcome.NO_ENDPOINT)

    def test_beside_a_shorter_endpoint_one_waits_for_a_longer_as_if_alone(self, play):
        p = play(ttl=2, no_endpoint_ttl=30) >> up("long", length=1000) >> up("short", length=100)
        (
            p
            >> EndpointDown("long", "killed")
            >> at(1)
            >> arrived(1, 500)
            << nothing
            >> arrived(2, 50)
            << Dispatch(2, "short")
        )
        p >> at(30) >> Tick() << nothing >> at(30.5) >> up("long", length=1000) << Dispatch(1, "long")
        p >> EndpointDown("long", "killed") >> at(31) >> arrived(3, 500) << nothing
        p >> at(60.9) >> Tick() << nothing >> at(61) >> Tick() << refused(3, Outcome.NO_ENDPOINT)

    def test_when_the_first_endpoint_comes_the_ttl_starts_anew(self, play):
        p = play(ttl=3, no_endpoint_ttl=100) >> arrived(1, blocks=90) >> arrived(2, blocks=90) << nothing
        p >> at(50) >> up("a") << Dispatch(1, "a")
        p >> at(52.9) >> Tick() << nothing >> at(53) >> Tick() << refused(2, Outcome.QUEUE_TIMEOUT)

    def test_a_flapping_pool_makes_nobody_wait_longer_than_both_ttls(self, play):
        p = play(ttl=10, no_endpoint_ttl=5) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2) << nothing
        for time in (4, 8, 12):
            p >> at(time) >> EndpointDown("a", "killed") << nothing >> at(time + 1) >> up("a") << nothing
        p >> at(15) >> Tick() << refused(2, Outcome.QUEUE_TIMEOUT)

    def test_nothing_goes_out_at_the_instant_of_its_deadline(self, play):
        p = play(ttl=10) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a") >> arrived(2) << nothing
        p >> at(10) >> done(1) << refused(2, Outcome.QUEUE_TIMEOUT)

    def test_the_timeout_of_a_head_lets_those_behind_it_go(self, play):
        p = play(ttl=10) >> up("a", blocks=100) >> arrived(1, blocks=60) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=60) << nothing >> at(5) >> arrived(3) << nothing
        p >> at(10) >> arrived(4) << refused(2, Outcome.QUEUE_TIMEOUT) << Dispatch(3, "a") << Dispatch(4, "a")

    def test_the_departure_of_a_head_lets_those_behind_it_go(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=60) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=60) >> arrived(3) << nothing >> Cancelled(2) << Dispatch(3, "a")

    def test_shutdown_refuses_who_waits_and_who_comes_later(self, play):
        p = play() >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a") >> arrived(2) << nothing
        p >> ShutdownStarted() << refused(2, Outcome.DRAINING)
        p >> arrived(3) << refused(3, Outcome.DRAINING)
        p >> Returned(1, Back.FAILED) << refused(1, Outcome.DRAINING)
        assert p.controller.snapshot(p.now).draining


class TestWaking:
    def test_nothing_is_asked_for_while_nothing_waits(self, play):
        play() >> up("a") << wakes(None) >> arrived(1) << Dispatch(1, "a") << wakes(None)

    def test_the_deadline_is_asked_for(self, play):
        p = play(ttl=0.5, no_endpoint_ttl=5) >> arrived(1) << wakes(5) >> at(1) >> up("a") << Dispatch(1, "a")
        p >> arrived(2, blocks=90) << nothing << wakes(1.5)

    def test_while_somebody_waits_every_poll_is_looked_at(self, play):
        p = play(poll_interval=2.0) >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2) << wakes(2) >> at(1) >> arrived(3) << wakes(None)
        p >> at(2) >> Tick() << wakes(4)

    def test_the_end_of_an_abort_is_asked_for(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> at(3) >> aborted(1) << wakes(4)
        p >> at(4) >> Tick() << wakes(None)
        assert not p.endpoint("a").in_flight


class TestEndings:
    def test_blocks_of_an_aborted_request_count_until_a_step_is_seen(self, play):
        p = play() >> up("a") >> arrived(1, blocks=50) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=40) << Dispatch(2, "a") >> arrived(3, blocks=20) << nothing
        p >> at(1) >> aborted(2) << nothing
        p >> at(1.04) >> progress(r1=3) << nothing  # may tell of a step before the abort
        p >> at(1.06) >> progress(r1=4) << Dispatch(3, "a")

    def test_without_any_step_they_are_free_after_a_second(self, play):
        p = play() >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a") >> arrived(2) << nothing
        p >> aborted(1) << wakes(None) >> at(1) >> Tick() << Dispatch(2, "a")

    def test_a_failure_is_tried_once_more_elsewhere(self, play):
        p = play() >> up("a") >> up("b", blocks=10) >> arrived(1, blocks=4) << Dispatch(1, "a")
        p >> Returned(1, Back.FAILED) << Dispatch(1, "b")
        p >> Returned(1, Back.FAILED) << refused(1, Outcome.UPSTREAM_ERROR)

    def test_it_waits_for_the_other_endpoint_rather_than_go_back(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> up("b") >> arrived(2, blocks=95)
        p << Dispatch(2, "b") >> Returned(1, Back.FAILED) << nothing
        p >> arrived(3) << Dispatch(3, "a")  # who has no quarrel with it may use it
        p >> done(2) << Dispatch(1, "b")

    def test_where_there_is_no_other_it_goes_back(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.FAILED) << Dispatch(1, "a")
        assert p.endpoint("a").in_flight == 1

    def test_returned_requests_keep_their_turn(self, play):
        p = play() >> up("a", seqs=2) >> arrived(1) << Dispatch(1, "a") >> arrived(2) << Dispatch(2, "a")
        p >> arrived(3) << nothing >> EndpointDown("a", "killed")
        p >> Returned(1, Back.FAILED) >> Returned(2, Back.FAILED) << nothing
        p >> up("b", seqs=1) << Dispatch(1, "b") >> done(1) << Dispatch(2, "b") >> done(2) << Dispatch(3, "b")

    def test_a_returned_request_keeps_its_deadline(self, play):
        p = play(ttl=10) >> up("a") >> arrived(1) << Dispatch(1, "a")
        p >> at(10) >> Returned(1, Back.BUSY) << refused(1, Outcome.QUEUE_TIMEOUT)

    @pytest.mark.parametrize("why", [Back.FAILED, Back.UNREACHED])
    def test_its_time_on_an_endpoint_that_did_not_answer_was_no_wait_for_room(self, play, why):
        p = play(ttft_target=5) >> up("a") >> up("b", seqs=1) >> arrived(1) << Dispatch(1, "a")
        p >> at(31) >> Returned(1, why) << Dispatch(1, "b")
        p = play(ttft_target=5) >> up("a") >> up("b", seqs=1) >> arrived(1) << Dispatch(1, "a")
        p >> at(31) >> arrived(2, blocks=95) << Dispatch(2, "b") >> Returned(1, why) >> EndpointDown("a", "dead")
        p << nothing >> at(35.9) >> Tick() << nothing >> at(36) >> Tick() << refused(1, Outcome.WAIT_TOO_LONG)

    def test_who_can_connect_to_none_does_not_try_for_ever(self, play):
        p = play(ttft_target=5) >> up("a") >> up("b") >> arrived(1) << Dispatch(1, "a")
        p >> at(5) >> Returned(1, Back.UNREACHED) << Dispatch(1, "b")
        p >> at(10) >> Returned(1, Back.UNREACHED) << Dispatch(1, "a")
        p >> at(15) >> Returned(1, Back.UNREACHED) << refused(1, Outcome.WAIT_TOO_LONG)

    def test_who_could_connect_to_none_of_several_goes_to_the_one_that_is_left(self, play):
        p = play(ttft_target=5) >> up("a") >> up("b") >> up("c") >> arrived(1) << Dispatch(1, "a")
        p >> at(5) >> Returned(1, Back.UNREACHED) << Dispatch(1, "b")
        p >> at(10) >> Returned(1, Back.UNREACHED) << Dispatch(1, "c")

    def test_a_busy_endpoint_is_left_alone_until_the_next_scrape(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> Returned(1, Back.BUSY) << nothing
        assert p.endpoint("a").closed_by == ("busy",)
        p >> at(0.3) >> arrived(2) << nothing
        p >> at(0.4) >> scrape("a", 0.4) << Dispatch(1, "a") << Dispatch(2, "a")

    def test_a_busy_endpoint_gets_no_requests_for_a_second_and_has_not_failed(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a")
        for second in range(5):
            p >> Returned(1, Back.BUSY) << nothing << wakes(second + 1)
            p >> at(second + 1) >> Tick() << Dispatch(1, "a")

    def test_the_second_of_a_busy_endpoint_ends_before_a_late_poll(self, play):
        p = play(poll_interval=30.0) >> up("a") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.BUSY) << nothing << wakes(1) >> at(1) >> Tick() << Dispatch(1, "a")

    def test_another_endpoint_takes_what_a_busy_one_refused(self, play):
        p = play() >> up("a") >> up("b") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.BUSY) << Dispatch(1, "b")

    def test_an_endpoint_out_of_a_fronts_reach_gets_none_of_its_requests_and_has_not_failed(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a")
        for second in range(5):
            p >> Returned(1, Back.UNREACHED) << nothing << wakes(second + 1) >> arrived(2 + second) << nothing
            assert p.endpoint("a").closed_by == ()
            p >> at(second + 1) >> Tick() << Dispatch(1, "a") << Dispatch(2 + second, "a")

    def test_an_arrival_may_be_the_first_to_see_that_an_endpoint_is_tried_again(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> Returned(1, Back.UNREACHED) << nothing
        p >> at(1) >> arrived(2) << Dispatch(1, "a") << Dispatch(2, "a")

    def test_another_front_goes_on_where_one_cannot_connect(self, play):
        other = 1 << FRONT_BITS
        p = play() >> up("a", blocks=100) >> arrived(1) << Dispatch(1, "a") >> Returned(1, Back.UNREACHED) << nothing
        p >> arrived(other, blocks=95) << Dispatch(other, "a") >> arrived(other + 1, blocks=95) << nothing
        p >> done(other) << Dispatch(other + 1, "a")

    def test_it_goes_to_an_endpoint_that_its_front_reaches(self, play):
        p = play() >> up("a") >> up("b") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.UNREACHED) << Dispatch(1, "b") >> arrived(2) << Dispatch(2, "b")

    def test_what_waits_for_another_endpoint_keeps_it_from_no_front_that_reaches_more(self, play):
        other = 1 << FRONT_BITS
        p = play() >> up("a", seqs=1) >> up("b", seqs=1) >> arrived(1) << Dispatch(1, "a")
        p >> arrived(2) << Dispatch(2, "b") >> Returned(1, Back.UNREACHED) << nothing
        p >> arrived(other) << Dispatch(other, "a")

    def test_an_endpoint_that_came_up_is_tried_at_once(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> Returned(1, Back.UNREACHED) << nothing
        p >> EndpointDown("a", "killed") << nothing >> up("a") << Dispatch(1, "a")

    def test_observe_mode_sends_nothing_to_where_its_front_cannot_connect(self, play):
        p = play(mode=Mode.OBSERVE) >> up("a") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.UNREACHED) << nothing >> at(1) >> Tick() << Dispatch(1, "a")

    def test_what_runs_on_an_endpoint_that_went_away_is_released_at_its_own_end(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> EndpointGone("a") << nothing
        assert p.endpoint("a").in_flight == 1
        p >> done(1) << nothing
        assert not p.controller.snapshot(0).endpoints


class TestNoise:
    """What comes late, twice or from nowhere changes nothing."""

    @pytest.mark.parametrize(
        "event",
        [
            Cancelled(9),
            Cancelled(1),
            done(9),
            aborted(9),
            done(2),
            Returned(9, Back.FAILED),
            Returned(2, Back.FAILED),
            progress(r9=5, r2=5),
            Progress(()),
            arrived(1),
            arrived(2),
            EndpointDown("z", "?"),
            EndpointGone("z"),
            scrape("z", 1.0, kv=0.5),
        ],
    )
    def test_nothing_changes(self, play, event):
        p = play() >> up("a") >> arrived(1, blocks=90) << Dispatch(1, "a") >> arrived(2) << nothing
        before = p.controller.snapshot(0)
        p >> event << nothing
        assert p.controller.snapshot(0) == before

    def test_a_second_end_releases_nothing_twice(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> arrived(2) << Dispatch(2, "a")
        p >> done(1) >> done(1) >> aborted(1) >> Returned(1, Back.FAILED) << nothing
        assert p.endpoint("a").in_flight == 1


class TestObserveMode:
    def test_everything_goes_at_once_and_says_what_would_have_been(self, play):
        p = play(mode=Mode.OBSERVE) >> up("a", length=2000) >> arrived(1, blocks=90) << Dispatch(1, "a")
        p >> arrived(2, blocks=90) << Dispatch(2, "a", would="queued")
        p >> arrived(3, 5000) << Dispatch(3, "a", would=Outcome.CONTEXT_LENGTH_EXCEEDED)

    def test_a_queue_of_none_would_have_refused(self, play):
        p = play(mode=Mode.OBSERVE, max_requests=0) >> up("a") >> arrived(1, blocks=95) << Dispatch(1, "a")
        p >> arrived(2) << Dispatch(2, "a", would=Outcome.QUEUE_FULL)

    def test_the_least_used_endpoint_gets_what_none_would_take(self, play):
        p = play(mode=Mode.OBSERVE) >> up("a") >> up("b") >> arrived(1, blocks=95) << Dispatch(1, "a")
        p >> arrived(2, blocks=92) << Dispatch(2, "b") >> arrived(3) << Dispatch(3, "b", would="queued")

    def test_without_an_endpoint_it_waits(self, play):
        p = play(mode=Mode.OBSERVE, no_endpoint_ttl=5) >> arrived(1) << nothing >> up("a") << Dispatch(1, "a")
        p >> EndpointDown("a", "killed") >> arrived(2) << nothing
        p >> at(5) >> Tick() << refused(2, Outcome.NO_ENDPOINT)

    def test_an_endpoint_that_says_busy_is_left_alone(self, play):
        p = play(mode=Mode.OBSERVE) >> up("a") >> arrived(1) << Dispatch(1, "a")
        p >> Returned(1, Back.BUSY) << nothing >> at(1) >> Tick() << Dispatch(1, "a")


class TestRetryAfter:
    def test_it_tells_the_wait_by_the_measured_rate(self, play):
        p = play(max_requests=10) >> up("a", seqs=1) >> arrived(0) << Dispatch(0, "a")
        for request in range(1, 11):
            p >> arrived(request) << nothing
        for second in range(1, 31):  # one a second, and always ten that wait
            p >> at(second) >> done(second - 1, tokens=256) << Dispatch(second, "a") >> arrived(second + 10) << nothing
        (refusal,) = [c for c in p.controller.handle(arrived(200), 30.0) if hasattr(c, "outcome")]
        assert refusal.outcome is Outcome.QUEUE_FULL
        assert 10 <= refusal.retry_after <= 12 * 1.25 * 1.1


class TestFairness:
    @pytest.mark.parametrize(
        "end",
        [lambda r: done(r, 0), lambda r: Finished(r, Verdict.FAILED), aborted, lambda r: done(r, 1)],
        ids=["4xx", "5xx", "left", "one token"],
    )
    @pytest.mark.parametrize(("measured", "streamed"), [(True, True), (True, False), (False, True)])
    def test_a_flow_pays_for_the_places_that_it_held_until_a_token(self, play, end, measured, streamed):
        """Free of charge it went first at every place that it freed. `measured`: whether there were tokens before."""
        core, numbers, placed = play(ttl=1e6).controller, count(), []

        def tell(event, now):
            placed.extend(c.request for c in core.handle(event, now) if isinstance(c, Dispatch))

        tell(up("a", seqs=1), 0.0)
        for second in (0, 1) if measured else ():
            tell(scrape("a", float(second), running=1, waiting=0, tokens=30.0 * second), float(second))

        def asks(request, now):
            broken = request % 2
            flow, limit = ("broken", 1) if broken else ("sound", 30)
            tell(arrived(request, flow=flow, max_tokens=limit, streamed=streamed), now)

        for request in islice(numbers, 16):
            asks(request, 1.0)
        now, held = 1.0, {"broken": 0.0, "sound": 0.0}
        while now < 60:
            request = placed.pop()
            flow, seconds = ("broken", 0.5) if request % 2 else ("sound", 1.0)
            now, held[flow] = now + seconds, held[flow] + seconds
            asks(request + 16, now)
            tell(end(request) if request % 2 else done(request, 30), now)
            if not placed:  # what was left holds its place until it is surely aborted
                now += TUNING.abort_bound
                tell(Tick(), now)
        share = held["sound"] / sum(held.values())
        assert share > (0.45 if measured else 0.35), "by the rate that is taken for an unknown one it is 40 to 70"
