"""How one endpoint's ledger, scrapes and limits come together."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Arrived, Capacity, Demand, EndpointDown, EndpointUp, Tick
from tests.unit.admission.playbook import arrived, at, declared, done, nothing, progress, scrape, up


def with_one_running(play, blocks=20, **settings):
    """An endpoint of 100 blocks with one confirmed request, scraped at 0."""
    p = play(**settings) >> up("a", blocks=100) >> arrived(1, blocks=blocks) << Dispatch(1, "a")
    return p >> progress(r1=1) >> scrape("a", 0.0, kv=blocks / 100, running=1, waiting=0, tokens=0)


class TestCorrection:
    def test_traffic_that_goes_around_us_takes_room(self, play):
        p = with_one_running(play)
        for second in range(1, 12):
            p >> at(second) >> scrape("a", second, kv=0.70, running=5, waiting=0, tokens=second)
        assert p.endpoint("a").effective_usage == pytest.approx(0.70, abs=0.01)
        assert p.endpoint("a").ledger_usage == 0.20
        p >> arrived(2, blocks=19) << Dispatch(2, "a") >> arrived(3, blocks=2) << nothing

    def test_what_is_ours_counts_in_full_against_a_share_of_the_endpoint(self, play):
        half = EndpointUp("a", Capacity(4096, 100).part(0.5))
        p = play() >> half >> arrived(1, blocks=40) << Dispatch(1, "a") >> progress(r1=1)
        for second in range(12):
            p >> at(second) >> scrape("a", second, kv=0.40, running=1, waiting=0, tokens=second)
        assert p.endpoint("a").effective_usage == pytest.approx(0.80)
        p >> arrived(2, blocks=6) << nothing

    def test_a_share_is_full_once_the_whole_endpoint_is(self, play):
        half = EndpointUp("a", Capacity(4096, 100).part(0.5))
        p = play() >> half >> arrived(1, blocks=10) << Dispatch(1, "a") >> progress(r1=1)
        for second in range(12):
            p >> at(second) >> scrape("a", second, kv=0.90, running=5, waiting=0, tokens=second)
        assert p.endpoint("a").effective_usage == pytest.approx(0.90, abs=0.01)

    def test_what_the_gauge_has_shown_is_not_forgotten_with_another_share(self, play):
        whole = Capacity(4096, 100)
        p = play() >> EndpointUp("a", whole.part(0.5)) >> arrived(1, blocks=10) << Dispatch(1, "a") >> progress(r1=1)
        for second in range(12):
            p >> at(second) >> scrape("a", second, kv=0.80, running=5, waiting=0, tokens=second)
        p >> arrived(2, blocks=20) << nothing
        p >> EndpointUp("a", whole, scrape("a", 11, kv=0.80, running=5, waiting=0, tokens=11)) << nothing
        assert p.endpoint("a").effective_usage == pytest.approx(0.80)

    def test_what_was_sent_after_the_last_scrape_is_no_difference_with_another_share_either(self, play):
        last = scrape("a", 1.0, kv=0.2, running=1, waiting=0, tokens=5)
        p = with_one_running(play) >> at(1) >> last
        p >> at(2) >> arrived(2, blocks=50) << Dispatch(2, "a") >> progress(r2=1)
        p >> EndpointDown("a", "not now") >> EndpointUp("a", Capacity(4096, 100), last)
        assert p.endpoint("a").effective_usage == pytest.approx(0.70)
        p >> arrived(3, blocks=60) << nothing

    def test_a_scrape_that_said_nothing_says_nothing_with_another_share(self, play):
        idle = scrape("a", 0.0, kv=0.0, running=0, waiting=0, tokens=0)
        p = play() >> up("a", blocks=100) >> idle >> arrived(1, blocks=10) << Dispatch(1, "a") >> progress(r1=1)
        p >> EndpointDown("a", "not now") >> EndpointUp("a", Capacity(4096, 100), idle)
        p >> at(1) >> scrape("a", 1.0, kv=0.95, running=9, waiting=0, tokens=50)
        assert p.endpoint("a").effective_usage == pytest.approx(0.95)

    def test_what_an_idle_time_made_forgotten_stays_so_with_another_share(self, play):
        shown = scrape("a", 1.0, kv=0.95, running=5, waiting=0, tokens=9)
        p = with_one_running(play) >> at(1) >> shown >> done(1)
        p >> EndpointDown("a", "not now") >> EndpointUp("a", Capacity(4096, 100), shown)
        p >> arrived(2, blocks=10) << Dispatch(2, "a") >> progress(r2=1) >> arrived(3, blocks=10) << Dispatch(3, "a")

    def test_sharing_that_we_cannot_see_makes_room(self, play):
        p = with_one_running(play, blocks=80)
        for second in range(1, 12):
            p >> at(second) >> scrape("a", second, kv=0.30, running=1, waiting=0, tokens=second)
        p >> arrived(2, blocks=50) << Dispatch(2, "a")

    def test_what_was_sent_after_the_sample_is_not_taken_for_a_difference(self, play):
        p = with_one_running(play) >> at(5) >> arrived(2, blocks=50) << Dispatch(2, "a")
        p >> at(5.1) >> progress(r2=1) >> at(5.12) >> scrape("a", 5.12, kv=0.2, running=1, waiting=0, tokens=9)
        assert p.endpoint("a").effective_usage == pytest.approx(0.70)

    def test_a_gauge_that_does_not_move_fades_out(self, play):
        p = with_one_running(play, blocks=20)
        for second in range(1, 4):
            p >> at(second) >> scrape("a", second, kv=0.95, running=5, waiting=0, tokens=second)
        assert p.endpoint("a").closed_by == () or p.endpoint("a").effective_usage > 0.5
        for second in range(4, 12):
            p >> at(second) >> progress(r1=second) >> scrape("a", second, kv=0.95, running=5, waiting=0, tokens=3)
        assert p.endpoint("a").effective_usage == pytest.approx(p.endpoint("a").ledger_usage)

    def test_without_scrapes_the_ledger_carries_on_and_the_gate_opens(self, play):
        p = with_one_running(play)
        for second in range(1, 20):
            p >> at(second) >> scrape("a", second, kv=1.0, running=5, waiting=0, tokens=second)
        p >> arrived(2, blocks=20) << nothing
        assert p.endpoint("a").closed_by == ("gate",)
        p >> at(22.5) >> Tick() << nothing
        p >> at(25) >> Tick() << Dispatch(2, "a")

    def test_with_nothing_of_ours_in_flight_a_stuck_gauge_says_nothing(self, play):
        p = with_one_running(play) >> at(1) >> done(1)
        p >> at(2) >> scrape("a", 2, kv=0.95, running=1, waiting=0, tokens=0) >> at(2.5)
        p >> arrived(2, blocks=10) << Dispatch(2, "a") >> progress(r2=1) >> arrived(3, blocks=10) << Dispatch(3, "a")

    def test_with_nothing_of_ours_in_flight_an_engine_that_works_for_others_is_believed(self, play):
        p = play() >> up("a", blocks=100) >> scrape("a", 0.0, kv=0.5, running=9, waiting=0, tokens=0)
        p >> at(1) >> scrape("a", 1.0, kv=0.85, running=9, waiting=0, tokens=500)
        p >> arrived(1, blocks=10) << Dispatch(1, "a")  # idle, as far as we are concerned
        p >> arrived(2, blocks=1) << nothing

    def test_a_late_scrape_that_overtook_another_is_ignored(self, play):
        p = with_one_running(play)
        p >> at(2) >> scrape("a", 2.0, kv=0.2, running=1, waiting=0, tokens=5)
        p >> scrape("a", 1.0, kv=0.99, running=1, waiting=0, tokens=3)
        assert p.endpoint("a").effective_usage == pytest.approx(0.2)


class TestUnknownSize:
    def test_the_gauge_alone_gates_where_the_engine_does_not_tell_its_size(self, play):
        p = play() >> up("a", blocks=None) >> arrived(1) << Dispatch(1, "a") >> arrived(2) << Dispatch(2, "a")
        p >> at(1) >> scrape("a", 1, kv=0.92, running=2, waiting=0, tokens=5) >> arrived(3) << nothing
        p >> at(2) >> scrape("a", 2, kv=0.85, running=2, waiting=0, tokens=9) << nothing
        p >> at(3) >> scrape("a", 3, kv=0.75, running=2, waiting=0, tokens=15) << Dispatch(3, "a")
        assert p.endpoint("a").ledger_usage is None

    def test_a_stale_gauge_gates_nothing(self, play):
        p = play() >> up("a", blocks=None) >> arrived(1) << Dispatch(1, "a")
        p >> at(1) >> scrape("a", 1, kv=0.95, running=2, waiting=0, tokens=5) >> arrived(2) << nothing
        p >> at(4) >> Tick() << nothing >> at(5) >> Tick() << Dispatch(2, "a")


class TestEngineWaiting:
    def test_requests_of_others_that_wait_close_the_gate(self, play):
        p = with_one_running(play)
        p >> at(1) >> scrape("a", 1, kv=0.2, running=1, waiting=3, tokens=5) >> arrived(2) << Dispatch(2, "a")
        p >> progress(r2=1)
        p >> at(2) >> scrape("a", 2, kv=0.2, running=2, waiting=3, tokens=9) >> arrived(3) << nothing
        assert p.endpoint("a").closed_by == ("engine_waiting",)
        p >> at(3) >> scrape("a", 3, kv=0.2, running=2, waiting=0, tokens=15) << Dispatch(3, "a")

    def test_what_waits_in_the_engine_waits_with_another_share_too(self, play):
        p = with_one_running(play)
        for second in (1, 2):
            p >> at(second) >> (last := scrape("a", second, kv=0.2, running=1, waiting=3, tokens=5 * second))
        p >> EndpointDown("a", "not now") >> EndpointUp("a", Capacity(4096, 100), last) >> arrived(2) << nothing

    def test_our_own_burst_does_not_close_the_gate(self, play):
        p = play() >> up("a")
        for request in range(1, 6):
            p >> arrived(request) << Dispatch(request, "a")
        for second in range(1, 5):
            p >> at(second) >> scrape("a", second, kv=0.1, running=0, waiting=5, tokens=second)
            assert p.endpoint("a").gate_open

    def test_silent_requests_count_as_ours_on_their_way_only_until_their_first_token_is_due(self, play):
        p = with_one_running(play) >> at(1) >> scrape("a", 1, kv=0.2, running=1, waiting=0, tokens=50)
        for request in range(2, 5):
            p >> arrived(request, streamed=False) << Dispatch(request, "a")
        for second in (2, 3, 4):
            p >> at(second) >> scrape("a", second, kv=0.3, running=second, waiting=3, tokens=50 * second)
        assert p.endpoint("a").closed_by == ("engine_waiting",)

    def test_growth_that_nobody_reported_is_not_taken_for_traffic_around_us(self, play):
        p = play() >> up("a", blocks=100) >> arrived(1, blocks=20, streamed=False) << Dispatch(1, "a")
        p >> scrape("a", 0, kv=0.2, running=1, waiting=0, tokens=0)
        for second, kv in [(1, 0.2), (2, 0.3), (3, 0.4), (4, 0.5)]:  # ten blocks a second
            p >> at(second) >> scrape("a", second, kv=kv, running=1, waiting=0, tokens=160 * second)
        assert p.endpoint("a").ledger_usage == pytest.approx(0.5, abs=0.02)
        assert p.endpoint("a").effective_usage == pytest.approx(0.5, abs=0.02)


class TestEngineBacklog:
    """Prompts of 100 tokens, which the engine begins with at 100 a second once four of them have waited."""

    def pressed(self, play):
        p = play() >> up("a", blocks=50_000)
        for request in range(1, 6):
            p >> arrived(request, 100) << Dispatch(request, "a")
        for second in (1, 2, 3):
            p >> at(second) >> progress(**{f"r{second}": 1})
            p >> scrape("a", second, kv=0.1, running=second, waiting=5 - second, tokens=second)
        return p

    def declines(self, p):
        told = p.controller.explain(Arrived(99, Demand((100,), 10)), p.now)
        return [candidate.rule for candidate in told.candidates] == ["engine_backlog"]

    def test_what_waits_in_the_engine_for_over_a_second_of_its_work_keeps_others_in_the_queue(self, play):
        p = self.pressed(play) >> arrived(6, 100) << nothing
        assert p.endpoint("a").closed_by == ("engine_backlog",)
        p >> at(4) >> progress(r4=1) << Dispatch(6, "a")

    def test_what_it_computes_does_not(self, play):
        p = self.pressed(play) >> scrape("a", 3.5, kv=0.1, running=5, waiting=0, tokens=9)
        assert not self.declines(p)

    def test_a_scrape_like_the_last_says_who_waits_as_well(self, play):
        p = self.pressed(play) >> at(4) >> progress(r4=1) >> scrape("a", 4, kv=0.1, running=3, waiting=2, tokens=3)
        assert self.declines(p >> arrived(6, 100) << Dispatch(6, "a") >> at(5) >> arrived(7, 100))

    def test_old_scrapes_close_nothing(self, play):
        p = self.pressed(play) >> arrived(6, 100) << nothing >> at(5.9)
        assert self.declines(p)
        p >> at(6.1) >> Tick() << Dispatch(6, "a")

    def test_nothing_is_known_until_requests_waited_for_a_while(self, play):
        p = play() >> up("a", blocks=50_000)
        for request in range(1, 60):
            p >> arrived(request, 100) << Dispatch(request, "a")
        p >> at(1) >> progress(r1=1) >> scrape("a", 1, kv=0.1, running=1, waiting=58, tokens=1)
        assert not self.declines(p), "a burst goes: how fast it is shows now"

    def test_what_was_just_sent_may_wait_for_the_end_of_a_step(self, play):
        p = play() >> up("a", blocks=50_000)
        for request in range(1, 6):
            p >> at(request) >> arrived(request, 100) << Dispatch(request, "a")
            (
                p
                >> scrape("a", request, kv=0.1, running=request - 1, waiting=1, tokens=request)
                >> progress(**{f"r{request}": 1})
            )
        p >> arrived(6, 100) << Dispatch(6, "a") >> arrived(7, 100) << Dispatch(7, "a")
        assert not self.declines(p)

    def test_what_the_gauge_does_not_have_yet_waits_too(self, play):
        p = self.pressed(play) >> at(4) >> progress(r4=1) >> arrived(6, 100) << Dispatch(6, "a")
        assert self.declines(p >> at(4.1) >> scrape("a", 4.1, kv=0.1, running=4, waiting=1, tokens=9))

    def test_of_those_that_wait_some_are_those_of_other_shares(self, play):
        p = play() >> EndpointUp("a", Capacity(4096, 100_000).part(0.5))
        for request in range(1, 6):
            p >> arrived(request, 100) << Dispatch(request, "a")
        for second in (1, 2, 3):
            p >> at(second) >> progress(**{f"r{second}": 1})
            p >> scrape("a", second, kv=0.1, running=second, waiting=5 - second, tokens=second)
        assert not self.declines(p), "one of the two that wait is ours"

    def test_what_waits_in_other_shares_is_no_pressure_on_ours(self, play):
        p = play() >> EndpointUp("a", Capacity(4096, 100_000).part(0.25))
        for request in range(1, 10):
            p >> arrived(request, 100) << Dispatch(request, "a")
        for second in range(1, 6):
            p >> at(second) >> progress(**{f"r{second}": 1}) >> arrived(10 + second, 100) << Dispatch(10 + second, "a")
            p >> scrape("a", second, kv=0.1, running=second, waiting=3, tokens=second)
        assert not self.declines(p), "less than one of those that wait is ours, and one was just sent"

    def test_whole_answers_show_at_their_ends_how_fast_it_is(self, play):
        p = play() >> up("a", blocks=50_000)
        for request in range(1, 10):
            p >> arrived(request, 100, streamed=request < 3) << Dispatch(request, "a")
        p >> progress(r1=1)
        for second in (1, 2, 3):
            p >> at(second) >> scrape("a", second, kv=0.1, running=second, waiting=5, tokens=second)
            p >> done(2 * second + 1, 10) >> done(2 * second + 2, 10)
        rate = next(iter(p.controller._endpoints)).ledger.begins.rate(p.now)
        assert rate == pytest.approx(300, rel=0.1)

    def test_a_request_that_another_core_handed_over_began_there(self, play):
        p = self.pressed(play)
        before = next(iter(p.controller._endpoints)).ledger.begins.rate(3.0)
        p >> declared(arrived(50, 100), "a", generated=1)
        assert next(iter(p.controller._endpoints)).ledger.begins.rate(3.0) == before

    def test_the_first_steps_of_a_cold_engine_say_nothing(self, play):
        p = (
            play()
            >> up("a", blocks=50_000)
            >> arrived(1, 100)
            << Dispatch(1, "a")
            >> arrived(2, 100)
            << Dispatch(2, "a")
        )
        for second in range(1, 30):
            p >> at(second) >> scrape("a", second, kv=0.1, running=1, waiting=1, tokens=0)
        p >> at(30) >> progress(r1=1) >> scrape("a", 30, kv=0.1, running=1, waiting=1, tokens=1)
        assert not self.declines(p)

    def test_an_engine_that_came_back_may_be_faster(self, play):
        p = self.pressed(play) >> EndpointDown("a", "killed")
        for request in (1, 2, 3, 4, 5):
            p >> done(request)
        p >> up("a", blocks=50_000) >> arrived(6, 100) << Dispatch(6, "a") >> arrived(7, 500) << Dispatch(7, "a")
        p >> at(4) >> progress(r6=1) >> scrape("a", 4, kv=0.1, running=1, waiting=1, tokens=9)
        assert not self.declines(p)


class TestSequenceLimit:
    def test_a_learned_limit_holds_requests_back_and_is_shown(self, play):
        p = play() >> up("a")
        for request in range(1, 4):
            p >> arrived(request) << Dispatch(request, "a") >> Tick()
        p >> progress(r1=1, r2=1)
        for second in (1, 2, 3):
            p >> at(second) >> scrape("a", second, kv=0.1, running=2, waiting=1, tokens=second)
        state = p.endpoint("a")
        assert (state.sequence_limit, state.sequence_limit_learned) == (2, True)
        assert state.closed_by == ("sequences",)
        p >> arrived(4) << nothing >> done(1) << nothing >> done(2) << Dispatch(4, "a")

    def test_an_engine_that_came_back_may_have_another(self, play):
        p = play() >> up("a") >> arrived(1) << Dispatch(1, "a")
        for second in (1, 2, 3):
            p >> at(second) >> scrape("a", second, kv=0.1, running=2, waiting=1, tokens=second)
        assert p.endpoint("a").sequence_limit == 2
        p >> EndpointDown("a", "killed") >> done(1) >> up("a") << nothing
        assert p.endpoint("a").sequence_limit is None


class TestShown:
    def test_a_down_endpoint_says_why(self, play):
        p = play() >> up("a") >> EndpointDown("a", "no answer")
        assert (p.endpoint("a").up, p.endpoint("a").reason) == (False, "no answer")
        p >> up("a")
        assert (p.endpoint("a").up, p.endpoint("a").reason) == (True, None)

    def test_the_age_of_the_last_scrape_is_told(self, play):
        p = play() >> up("a")
        assert p.endpoint("a").scrape_age is None
        p >> at(5) >> scrape("a", 4.5, kv=0.5) >> at(7)
        assert (p.endpoint("a").scrape_age, p.endpoint("a").observed_usage) == (2.5, 0.5)
