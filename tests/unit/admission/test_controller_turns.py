"""The product, as scripts: who waits in vain, and whose turn it is."""

from dataclasses import replace

import pytest

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Back, Cancelled, EndpointDown, Finished, Returned, Tick, Verdict
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Band
from gateway.admission.tuning import TUNING
from tests.unit.admission.playbook import aborted, arrived, at, done, nothing, progress, refused, scrape, up

TOO_LONG = Outcome.WAIT_TOO_LONG


def costs_100(request, **settings):
    """10 tokens and, cold, 45 more."""
    return arrived(request, 10, max_tokens=45, **settings)


def costs_200(request, **settings):
    return arrived(request, 10, max_tokens=95, **settings)


def at_a_rate(play, **settings):
    """One at a time runs, a second each, of 100 tokens of service: number 20 runs and 21 waits, at 20 s."""
    p = play(**{"ttft_target": 5.0, **settings}) >> up("a", seqs=1) >> costs_100(0) << Dispatch(0, "a")
    p >> costs_100(1) << nothing
    for second in range(1, 21):
        p >> at(second) >> done(second - 1, 45) << Dispatch(second, "a") >> costs_100(second + 1) << nothing
    assert p.controller.snapshot(20.0).drain_rate == pytest.approx(100, rel=0.1)
    return p


def let_in(p, requests, **settings):
    """How many of those that come now may wait; the first refusal."""
    for count, request in enumerate(requests):
        p >> costs_100(request, **settings)
        if p.pending:
            return count, p.pending.pop(0)
    return len(requests), None


class TestShedding:
    def test_who_would_surely_wait_too_long_is_refused_at_once(self, play):
        count, refusal = let_in(at_a_rate(play), range(22, 60))
        assert count in {9, 10}  # one waits before them: twice 5 s, at one a second
        assert (refusal.outcome, refusal.request) == (TOO_LONG, 22 + count)

    def test_it_may_come_back_when_it_would_have_its_first_token_in_time(self, play):
        _, refusal = let_in(at_a_rate(play), range(22, 60))
        assert 10 - 5 <= refusal.retry_after <= (11 - 5) * 1.25

    def test_a_client_that_asks_for_less_is_refused_where_others_wait(self, play):
        p = at_a_rate(play) >> costs_100(22, ttft=0.4) << refused(22, TOO_LONG)  # twice that is under a second
        p >> costs_100(23, ttft=0.6) << nothing >> costs_100(24) << nothing

    def test_a_client_that_asks_for_more_waits_where_others_are_refused(self, play):
        p = at_a_rate(play)
        let_in(p, range(22, 60))
        p >> costs_100(60, ttft=30.0) << nothing >> costs_100(61) << refused(61, TOO_LONG)

    def test_a_band_has_its_own_target(self, play):
        p = at_a_rate(play, bands={1: Band(ttft_target=0.4), 2: Band(ttft_target=30.0), 3: Band()})
        p >> costs_100(22, band=1) << refused(22, TOO_LONG) >> costs_100(23, band=3) << nothing
        count, _ = let_in(p, range(30, 50))
        p >> costs_100(50, band=2) << nothing >> costs_100(51, band=3) << refused(51, TOO_LONG)
        assert count in {9, 10}

    def test_what_the_client_asks_for_goes_before_its_bands(self, play):
        p = at_a_rate(play, bands={1: Band(ttft_target=0.4)})
        p >> costs_100(22, band=1, ttft=5.0) << nothing

    def test_without_a_target_everybody_waits(self, play):
        count, refusal = let_in(at_a_rate(play, ttft_target=None), range(22, 200))
        assert (count, refusal) == (178, None)

    def test_a_client_may_set_a_target_where_the_policy_has_none(self, play):
        at_a_rate(play, ttft_target=None) >> costs_100(22, ttft=0.4) << refused(22, TOO_LONG)

    def test_while_no_rate_is_known_nobody_is_refused(self, play):
        p = play(ttft_target=5.0) >> up("a", seqs=1) >> costs_100(0) << Dispatch(0, "a")
        assert let_in(p, range(1, 200)) == (199, None)

    def test_a_pool_that_was_never_pressed_is_known_by_what_runs(self, play):
        p = play(ttft_target=5.0) >> up("a", seqs=2) >> arrived(1, max_tokens=500) << Dispatch(1, "a")
        p >> arrived(2, max_tokens=500) << Dispatch(2, "a") >> progress(r1=1, r2=1)
        for second in range(1, 4):  # 10 tokens a second of each: 40 of service
            p >> at(second) >> scrape("a", second, kv=0.1, running=2, waiting=0, tokens=20 * second)
        count, refusal = let_in(p, range(3, 60))
        assert count == pytest.approx(2 * 5.0 * 40 / 100, abs=1)
        assert refusal.outcome is TOO_LONG

    def test_those_ahead_in_the_queue_count_by_their_tokens_not_heads(self, play):
        p = at_a_rate(play) >> costs_200(22) << nothing  # 3 s of work
        p >> costs_100(23, ttft=1.2) << refused(23, TOO_LONG) >> costs_100(24, ttft=1.7) << nothing

    def test_the_tokens_that_must_become_free_for_it_count_too(self, play):
        p = at_a_rate(play) >> arrived(22, blocks=95, max_tokens=1, ttft=0.6) << refused(22, TOO_LONG)
        p >> arrived(23, blocks=80, max_tokens=1, ttft=0.6) << nothing

    def test_the_quiet_flow_is_not_refused_for_the_backlog_of_another(self, play):
        p = at_a_rate(play)
        count, _ = let_in(p, range(22, 60), flow="noisy")
        assert count < 30
        p >> costs_100(60, flow="quiet") << nothing

    def test_who_runs_out_of_time_is_told_the_same(self, play):
        p = play(ttft_target=5.0) >> up("a", seqs=1) >> costs_100(1) << Dispatch(1, "a")
        p >> at(1) >> costs_100(2) << nothing >> at(5.9) >> Tick() << nothing
        p >> at(6) >> Tick() << refused(2, TOO_LONG)

    def test_without_a_target_it_waits_for_the_time_to_live(self, play):
        p = play(ttft_target=None, ttl=60) >> up("a", seqs=1) >> costs_100(1) << Dispatch(1, "a")
        p >> costs_100(2) << nothing >> at(59.9) >> Tick() << nothing
        p >> at(60) >> Tick() << refused(2, Outcome.QUEUE_TIMEOUT)

    def test_each_waits_as_long_as_it_asked_to(self, play):
        p = play(ttft_target=5.0, bands={1: Band(ttft_target=4.0)}) >> up("a", seqs=1)
        p >> costs_100(1) << Dispatch(1, "a")
        p >> costs_100(2, ttft=1.0) >> costs_100(3, ttft=20.0) >> costs_100(4, band=1) >> costs_100(5) << nothing
        for time, request in [(1, 2), (4, 4), (5, 5), (20, 3)]:
            p >> at(time - 0.1) >> Tick() << nothing >> at(time) >> Tick() << refused(request, TOO_LONG)

    def test_what_its_prefill_takes_is_not_there_to_wait(self, play):
        p = play(ttft_target=5.0) >> up("a", seqs=1) >> arrived(1, 100) << Dispatch(1, "a")
        p >> at(2) >> progress(r1=1) >> arrived(2, 100) << nothing  # 2 s of prefill
        p >> at(4.9) >> Tick() << nothing >> at(5) >> Tick() << refused(2, TOO_LONG)

    def test_a_long_prompt_goes_to_an_idle_pool_and_may_wait_for_half_the_target(self, play):
        p = play(ttft_target=5.0) >> up("a", blocks=1000, seqs=1) >> arrived(1, 100) << Dispatch(1, "a")
        p >> at(2) >> progress(r1=1) >> at(3) >> done(1, 45)
        p >> arrived(2, 4000) << Dispatch(2, "a") >> arrived(3, 4000) << nothing  # 80 s of prefill
        p >> at(5.4) >> Tick() << nothing >> at(5.5) >> Tick() << refused(3, TOO_LONG)

    def test_while_no_endpoint_is_live_nobody_is_refused_for_its_target(self, play):
        p = at_a_rate(play, no_endpoint_ttl=40) >> EndpointDown("a", "killed") << nothing
        assert let_in(p, range(22, 60)) == (38, None)
        p >> at(29.9) >> Tick() << nothing

    def test_when_one_is_back_the_targets_count_from_then(self, play):
        p = play(ttft_target=5.0, no_endpoint_ttl=40) >> up("a", seqs=1) >> costs_100(1) << Dispatch(1, "a")
        p >> at(1) >> costs_100(2) << nothing >> at(3) >> EndpointDown("a", "killed") << nothing
        p >> at(20) >> Tick() << nothing >> up("a", seqs=1) << nothing
        p >> at(24.9) >> Tick() << nothing >> at(25) >> Tick() << refused(2, TOO_LONG)

    def test_those_refused_together_are_not_told_the_same(self, play):
        p = at_a_rate(play)
        let_in(p, range(22, 60))
        told = []
        for request in range(60, 80):
            p >> costs_100(request)
            told.append(p.pending.pop(0).retry_after)
        assert len(set(told)) == len(told)


def turns(p, running, count, tokens=None):
    """Who gets the one place as each ends with as many tokens as were expected, or the given."""
    order = []
    for _ in range(count):
        expected = p.controller._requests[running].arrival.demand.max_tokens
        p >> progress(**{f"r{running}": 1}) >> at(p.now + 1)
        p >> done(running, expected if tokens is None else tokens.get(running, expected))
        (command,) = p.pending
        assert isinstance(command, Dispatch | Reject)
        p.pending.clear()
        running = command.request
        order.append(running)
    return order


class TestFairness:
    def one_runs(self, play, **settings):
        return play(**settings) >> up("a", seqs=1) >> costs_100(0, flow="other") << Dispatch(0, "a")

    def test_flows_alternate_by_tokens(self, play):
        p = self.one_runs(play)
        for request in range(1, 7):
            p >> costs_100(request, flow="small")
        for request in range(11, 14):
            p >> costs_200(request, flow="large")
        order = turns(p, 0, 9)
        assert [request for request in order if request < 10] == [1, 2, 3, 4, 5, 6]
        for upto in range(10):
            small, large = (sum(low < r < low + 10 for r in order[:upto]) for low in (0, 10))
            assert abs(100 * small - 200 * large) <= 200

    def test_flows_alternate_by_their_weights(self, play):
        p = self.one_runs(play, weights={"heavy": 3.0})
        for request in range(1, 13):
            p >> costs_100(request, flow="heavy") >> costs_100(request + 100, flow="light")
        assert sum(request < 100 for request in turns(p, 0, 12)) == 9

    def test_within_a_flow_the_first_in_is_the_first_out(self, play):
        p = self.one_runs(play)
        for request in range(1, 6):
            p >> costs_100(request, flow="same")
        assert turns(p, 0, 5) == [1, 2, 3, 4, 5]

    def test_what_a_short_answer_did_not_take_is_given_back(self, play):
        p = self.one_runs(play)
        for request in range(1, 6):
            p >> costs_100(request, flow="short") >> costs_100(request + 10, flow="full")
        # Each of "short" takes 20 of the 100 it was charged.
        assert turns(p, 0, 5, dict.fromkeys(range(1, 6), 5)) == [1, 11, 2, 3, 4]

    def test_what_a_long_answer_took_beyond_its_prediction_is_charged(self, play):
        p = self.one_runs(play)
        for request in range(1, 6):  # by the prior 256 are expected: a cost of 522
            (
                p
                >> arrived(request, 10, max_tokens=900, flow="long")
                >> arrived(request + 10, 10, max_tokens=900, flow="b")
            )
        took = dict.fromkeys(range(1, 6), 900) | dict.fromkeys(range(11, 16), 256)
        assert turns(p, 0, 5, took) == [1, 11, 12, 13, 14]

    def test_what_an_estimated_prompt_really_took_is_charged(self, play):
        p = self.one_runs(play)
        for request in range(1, 6):
            p >> costs_100(request, flow="estimated") >> costs_100(request + 10, flow="counted")
        p >> done(0, 45) << Dispatch(1, "a") >> Finished(1, Verdict.DONE, 45, 310)
        order = []
        for _ in range(4):
            (dispatch,), p.pending = p.pending, []
            order.append(dispatch.request)
            p >> done(dispatch.request, 45)
        p.pending.clear()
        assert order == [11, 12, 13, 14]

    @pytest.mark.parametrize("told", [None, 1, 1000])
    def test_it_changes_no_wait(self, play, told):
        """Those that wait are estimated too: by what was really drained each would wait far too long."""
        p = self.one_runs(play) >> costs_100(1) >> costs_100(2)
        p >> at(1.0) >> Finished(0, Verdict.DONE, 45, told) << Dispatch(1, "a")
        p >> at(2.0) >> Finished(1, Verdict.DONE, 45, told) << Dispatch(2, "a")
        assert p.controller._waits.drain_rate.rate(p.now) == pytest.approx(105.1, abs=0.1)

    def test_one_that_came_back_unanswered_is_charged_nothing(self, play):
        p = self.one_runs(play)
        for request in (1, 2):
            p >> costs_100(request, flow="unlucky") >> costs_100(request + 10, flow="other")
        p >> at(1) >> done(0, 45) << Dispatch(1, "a") >> Returned(1, Back.BUSY) << nothing
        p >> at(2) >> Tick() << Dispatch(1, "a")

    def test_an_idle_flow_comes_in_ahead_of_a_backlog(self, play):
        p = self.one_runs(play)
        for request in range(1, 30):
            p >> costs_100(request, flow="noisy")
        turns(p, 0, 5)
        p >> costs_100(50, flow="quiet") >> costs_100(51, flow="quiet")
        order = turns(p, 5, 5)
        assert 50 in order[:2]
        assert 51 in order[:4]

    def test_who_idled_has_no_hoard(self, play):
        p = self.one_runs(play)
        for request in range(1, 40):
            p >> costs_100(request, flow="busy")
        running = turns(p, 0, 20)[-1]
        for request in range(50, 60):
            p >> costs_100(request, flow="back")
        assert sum(request >= 50 for request in turns(p, running, 10)) in {5, 6}


class TestBands:
    def crowded(self, play, **settings):
        p = play(ttl=1000, **settings) >> up("a", seqs=1) >> costs_100(0) << Dispatch(0, "a")
        for request in range(1, 121):
            p >> costs_100(request, band=0) >> costs_100(request + 1000, band=1)
        return p

    def test_a_reserved_share_is_served_beside_what_is_more_urgent(self, play):
        order = turns(self.crowded(play, bands={1: Band(reserved=0.25)}), 0, 40)
        assert sum(request > 1000 for request in order) in {9, 10}
        assert sum(request > 1000 for request in order[20:]) == 5

    def test_a_band_without_a_reserved_share_does_not_starve(self, play):
        order = turns(self.crowded(play), 0, 110)
        assert sum(request > 1000 for request in order) == 2

    def test_the_more_urgent_may_use_what_is_reserved_while_nobody_is_there(self, play):
        p = play(bands={1: Band(reserved=0.9)}) >> up("a", seqs=1) >> costs_100(0) << Dispatch(0, "a")
        for request in range(1, 11):
            p >> costs_100(request)
        assert turns(p, 0, 10) == list(range(1, 11))

    def test_a_newcomer_to_a_reserved_band_is_promised_its_share(self, play):
        p = at_a_rate(play, bands={1: Band(reserved=0.5)})
        for request in range(30, 39):
            p >> costs_100(request) << nothing
        p >> costs_100(60, band=1, ttft=1.5) << nothing  # 2 s by its share, 10 s behind all others
        p >> costs_100(61, band=2, ttft=1.5) << refused(61, TOO_LONG)


@pytest.mark.parametrize(("band", "counted"), [(0, [0.0, 0.0, 0.0]), (1, [110.0, 110.0, 210.0])])
def test_what_requests_have_had_is_counted_once_a_second_where_there_are_several_bands(play, band, counted):
    p = play() >> up("a", seqs=1) >> arrived(1, 10) << Dispatch(1, "a") >> arrived(2, band=band) << nothing
    for time, tokens, service in zip((1.0, 1.5, 2.0), (50, 75, 100), counted, strict=True):
        p >> at(time) >> progress(r1=tokens) >> scrape("a", time, kv=0.1, running=1, waiting=0, tokens=tokens)
        assert p.controller._queue._served == service


@pytest.mark.parametrize(("estimated", "counted"), [(False, 110.0), (True, 100.0)])
def test_of_an_estimated_prompt_nothing_is_counted_before_its_end(play, estimated, counted):
    p = play() >> up("a", seqs=1) >> replace(arrived(1, 10), estimated=estimated) << Dispatch(1, "a")
    p >> arrived(2, band=1) << nothing >> at(1.0) >> progress(r1=50)
    p >> scrape("a", 1.0, kv=0.1, running=1, waiting=0, tokens=50)
    assert p.controller._queue._served == counted


@pytest.mark.parametrize(("streamed", "pace"), [(True, TUNING.place_rate), (False, 0.0)])
def test_a_stream_without_a_token_has_had_what_its_place_was_worth(play, streamed, pace):
    """Else all places of an engine were taken from it before the first was paid."""
    p = play() >> up("a", seqs=1) >> arrived(1, streamed=streamed) << Dispatch(1, "a") >> arrived(2, band=1) << nothing
    p >> at(30.0) >> scrape("a", 30.0, kv=0.1, running=1, waiting=0, tokens=0)
    assert p.controller._queue._served == TUNING.output_weight * pace * 30.0


@pytest.mark.parametrize(("band", "goes"), [(0, 4), (3, 3)])
def test_a_flow_within_its_share_finds_room_that_a_backlog_left_free_unless_it_is_less_urgent(play, band, goes):
    """Without it, it would wait for somebody's end each time."""
    p = play() >> up("a", blocks=100)
    p >> arrived(1, blocks=5, flow="quiet") << Dispatch(1, "a") >> progress(r1=1)
    p >> arrived(2, blocks=60, flow="noisy") << Dispatch(2, "a") >> progress(r2=1) >> at(5.0)
    p >> arrived(3, blocks=24, flow="noisy") << nothing  # fits, but would leave less than a request of the other
    p >> arrived(4, blocks=5, flow="quiet", band=band) << Dispatch(goes, "a")


class TestWhatIsKeptIsNotForALessUrgentBand:
    """A flow that leaves it free would lose its engine to less urgent ones, place by place."""

    def places(self, play, **settings):
        p = play(**settings) >> up("a", seqs=16) >> arrived(90, flow="light") << Dispatch(90, "a")
        for request in range(15):
            p >> costs_100(request, flow="heavy") << Dispatch(request, "a")
        p >> progress(**{f"r{request}": 1 for request in range(15)})
        return p >> at(20.0) >> done(90, tokens=5) >> costs_100(15, flow="heavy") << nothing

    def room(self, play):
        p = play() >> up("a", blocks=100)
        p >> arrived(1, blocks=10, flow="light") << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=60, flow="heavy") << Dispatch(2, "a") >> progress(r2=1) >> at(5.0)
        return p >> arrived(15, blocks=18, flow="heavy") << nothing

    @pytest.mark.parametrize("kept", [places, room])
    def test_a_less_urgent_flow_waits_for_who_leaves_it_free(self, play, kept):
        p = kept(self, play)
        p >> arrived(50, blocks=1, flow="less urgent", band=5) << nothing
        p >> arrived(60, blocks=1, flow="light") << Dispatch(60, "a")

    @pytest.mark.parametrize("kept", [places, room])
    def test_a_flow_of_its_band_does_not(self, play, kept):
        kept(self, play) >> arrived(50, blocks=1, flow="other") << Dispatch(50, "a")

    @pytest.mark.parametrize("kept", [places, room])
    def test_nor_does_one_that_nobody_leaves_it_to(self, play, kept):
        p = kept(self, play) >> Cancelled(15)
        p >> arrived(50, blocks=1, flow="less urgent", band=5) << Dispatch(50, "a")

    def test_what_is_owed_to_its_band_it_gets(self, play):
        p = self.places(play, bands={5: Band(reserved=0.25)})
        for request in range(100, 140):
            p >> costs_100(request, flow="heavy") >> costs_100(request + 100, flow="less urgent", band=5) << nothing
        running, sent = list(range(15)), []
        while len(sent) < 40:
            p >> done(running.pop(0), tokens=45)
            new = [command.request for command in p.pending]
            p.pending.clear()
            running, sent = running + new, sent + new
        assert sum(request >= 200 for request in sent) in {9, 10, 11}

    def test_it_is_told_how_long_it_waits(self, play):
        """The backlog that leaves room free goes before it."""
        p = self.places(play)
        ahead = p.controller._queue.ahead(5, "less urgent")
        assert ahead.urgent > 0
        assert p.controller._queue.ahead(0, "other").same == 0.0


def test_what_is_kept_is_worked_out_anew_after_each_dispatch(play):
    """While three of the light flow wait, nothing is kept for it: it takes all it can get. Then all three have gone."""
    p = play() >> up("a", seqs=16) >> arrived(90, flow="light") << Dispatch(90, "a")
    for request in range(11):
        p >> arrived(request, flow="heavy") << Dispatch(request, "a")
    p >> arrived(11, n=4, flow="heavy") << Dispatch(11, "a")
    p >> arrived(12, flow="heavy") << nothing >> arrived(13, flow="heavy") << nothing
    for request in (91, 92, 93):
        p >> arrived(request, max_tokens=1, flow="light") << nothing
    p >> at(20.0) >> done(90, tokens=5) << Dispatch(91, "a") << nothing
    p >> done(11, tokens=1600) << Dispatch(12, "a") << Dispatch(92, "a") << Dispatch(93, "a") << nothing


class TestWhatAnAnswerTook:
    """Of who had a long prompt served, the next waits for the other flow's; of who was refused by the engine, not."""

    @pytest.mark.parametrize(("tokens", "first"), [(None, 11), (0, 2)])
    def test_an_answer_of_unknown_length_is_charged_as_predicted_and_a_refusal_is_free(self, play, tokens, first):
        p = play() >> up("a", seqs=1, blocks=1000, length=9000) >> arrived(0, 10) << Dispatch(0, "a")
        p >> arrived(1, 4000, flow="a") << nothing >> arrived(2, 4000, flow="a") << nothing
        p >> arrived(11, 4000, flow="b") << nothing >> done(0, tokens=1) << Dispatch(1, "a")
        p >> done(1, tokens=tokens) << Dispatch(first, "a")

    @pytest.mark.parametrize(("leaves_after", "first"), [(0.0, 2), (3.0, 12)])
    def test_who_leaves_before_its_usage_is_told_has_taken_what_the_clock_tells(self, play, leaves_after, first):
        """The client of flow "a" wants no stream: at once it has taken less than "b" takes, at the end more."""
        p = play() >> up("a", seqs=1, blocks=1000, length=9000) >> arrived(0, 10) << Dispatch(0, "a")
        p >> scrape("a", 0.0, kv=0.1, running=1, waiting=0, tokens=0) >> at(1.0)
        p >> scrape("a", 1.0, kv=0.1, running=1, waiting=0, tokens=100)
        for request, flow in ((1, "a"), (2, "a"), (11, "b"), (12, "b")):
            p >> arrived(request, 10, max_tokens=4000, flow=flow, streamed=False)
        p >> done(0, tokens=45) << Dispatch(1, "a") >> at(1.0 + leaves_after) >> aborted(1) << nothing
        p >> at(3.0 + leaves_after) >> Tick() << Dispatch(11, "a") >> done(11, tokens=45) << Dispatch(first, "a")

    def test_an_answer_that_was_too_large_to_be_read_has_taken_what_the_clock_tells(self, play):
        """That is 3000 tokens, and it was predicted a few hundred: the next is of the flow that was given 1000."""
        p = play() >> up("a", seqs=1, blocks=1000, length=9000) >> arrived(0, 10) << Dispatch(0, "a")
        p >> scrape("a", 0.0, kv=0.1, running=1, waiting=0, tokens=0) >> at(1.0)
        p >> scrape("a", 1.0, kv=0.1, running=1, waiting=0, tokens=100)
        for request, flow in ((1, "a"), (2, "a"), (11, "b"), (12, "b")):
            p >> arrived(request, 10, max_tokens=4000, flow=flow, streamed=False)
        p >> done(0, tokens=45) << Dispatch(1, "a") >> at(31.0) >> done(1) << Dispatch(11, "a")
        p >> done(11, tokens=1000) << Dispatch(12, "a")


@pytest.mark.parametrize(
    ("asked", "limit", "starves"),
    [
        (arrived(2, flow="small"), 4, True),
        (arrived(2, flow="small", ttft=1.0), 4, False),
        (arrived(2, flow="small", blocks=90), 8, False),
    ],
    ids=["no place", "a target of its own", "no room"],
)
def test_a_flow_starves_that_was_refused_as_all_places_were_taken(play, asked, limit, starves):
    p = play(ttft_target=5.0) >> up("a", blocks=100, seqs=limit)
    p >> arrived(1, n=4, blocks=5, max_tokens=10, flow="group") << Dispatch(1, "a") >> progress(r1=4)
    p >> asked << nothing >> at(20.0) >> Tick() << refused(2, Outcome.WAIT_TOO_LONG)
    assert p.controller._places.starves("group", 0, p.now) is starves
