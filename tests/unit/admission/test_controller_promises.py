"""The product, as scripts: who is refused and comes back."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Cancelled, Tick
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Mode
from gateway.admission.queueing.jitter import CAP
from tests.unit.admission.playbook import arrived, at, done, nothing, progress, refused, up
from tests.unit.admission.test_controller_policy import changed
from tests.unit.admission.test_controller_turns import at_a_rate

TOO_LONG, FULL = Outcome.WAIT_TOO_LONG, Outcome.QUEUE_FULL


def one(request, key=0, **settings):
    """10 tokens and 45 more: a second of the pool."""
    return arrived(request, 10, max_tokens=45, key=key, **settings)


def told(p):
    """What the one that was refused last is told, seconds."""
    return p.pending.pop(0).retry_after


def crowded(play, waiting=None, **settings):
    """Number 20 runs, 21 and as many more wait, each a second of work; or as many as may."""
    p, request = at_a_rate(play, **settings), 22
    while not p.pending and waiting != request - 22:
        p >> one(request)
        request += 1
    p.pending.clear()
    return p


def refuse(p, request, key, **settings):
    """One is refused; what it is told."""
    p >> one(request, key, **settings)
    return told(p)


def promised(p, request, key):
    """One is refused, after some others: its moment is when all who wait now have been refused."""
    for other in range(800, 805):
        refuse(p, other, other)
    return 20 + refuse(p, request, key)


def serve(p, time, ends, goes=None):
    """One ends then; who goes."""
    p >> at(time) >> done(ends, 45)
    return p if goes is None else p << Dispatch(goes, "a")


class TestTheMoment:
    def test_consecutive_refusals_are_told_times_a_request_apart(self, play):
        p = crowded(play)
        times = [refuse(p, request, request) for request in range(60, 70)]
        assert times == pytest.approx([times[0] + number for number in range(10)], rel=0.1)
        assert 2 <= times[0] <= 4

    def test_beyond_what_can_be_promised_it_is_a_minute(self, play):
        p = crowded(play)
        times = [refuse(p, request, request) for request in range(60, 300)]
        assert times == sorted(times)
        assert times[-1] == CAP

    def test_who_runs_out_of_time_in_the_queue_is_promised_a_turn_too(self, play):
        p = crowded(play, waiting=0)
        p >> one(50, 50, ttft=0.9) << nothing >> at(20.9) >> Tick()
        assert 1 <= told(p) <= 3

    def test_without_a_key_nothing_is_promised(self, play):
        p = crowded(play)
        refuse(p, 60, 0)
        assert len(p.controller._promises) == 0

    def test_while_no_rate_is_known_nothing_is_promised(self, play):
        p = play(max_requests=0) >> up("a", seqs=1) >> one(1) << Dispatch(1, "a")
        assert 5 <= refuse(p, 2, 7) <= 6.25
        assert len(p.controller._promises) == 0


class TestTheReturn:
    def test_it_goes_before_all_who_came_after_its_first_arrival(self, play):
        p = crowded(play, waiting=1)
        due = 20 + refuse(p, 60, 7, ttft=0.5)
        p >> one(61) << nothing >> one(62) << nothing >> at(due) >> one(63, 7) << nothing
        for number, (ends, goes) in enumerate([(20, 21), (21, 22), (22, 63), (63, 61), (61, 62)]):
            serve(p, due + number / 2, ends, goes)

    def test_its_queue_budget_counts_from_its_return(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due) >> Tick()
        p.pending.clear()  # those who waited
        p >> one(61, 7) << nothing >> at(due + 4.9) >> Tick() << nothing
        p >> at(due + 5) >> Tick() << refused(61, TOO_LONG)

    def test_who_had_its_turn_in_vain_has_it_again_at_once(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due) >> Tick()
        p.pending.clear()
        p >> one(61, 7) << nothing >> at(due + 5) >> one(62) << refused(61, TOO_LONG)
        p >> at(due + 6) >> one(63, 7) << nothing
        serve(p, due + 6.5, 20, 63)

    def test_too_late_it_is_a_newcomer(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due + 3.1) >> Tick()
        p.pending.clear()
        p >> one(61) << nothing >> one(62, 7) << nothing
        serve(p, due + 3.5, 20, 61)

    def test_it_is_not_refused_for_the_backlog_behind_it(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due) >> Tick()
        p.pending.clear()
        for request in range(100, 130):
            p >> one(request)
            p.pending.clear()
        p >> one(130) << refused(130, TOO_LONG) >> one(131, 7) << nothing

    def test_a_promise_is_good_for_one(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due) >> Tick()
        p.pending.clear()
        p >> one(61) << nothing >> one(62, 7) << nothing >> one(63, 7) << nothing
        serve(p, due + 0.5, 20, 62)
        serve(p, due + 1.5, 62, 61)

    def test_between_flows_service_is_shared_as_ever(self, play):
        p = crowded(play)
        promised(p, 60, 7)
        due = 20 + refuse(p, 61, 8)
        p >> progress(r20=1) >> at(due) >> Tick()
        p.pending.clear()
        p >> one(62, flow="other") << nothing >> one(63, flow="other") << nothing >> one(64, 7) >> one(65, 8) << nothing
        for number, (ends, goes) in enumerate([(20, 64), (64, 62), (62, 65), (65, 63)]):
            serve(p, due + number, ends, goes)


class TestFull:
    """A queue of 3 without a target: one runs, three wait, the next is refused."""

    def test_who_comes_back_has_the_place_of_the_last_of_its_flow(self, play):
        p = crowded(play, waiting=2, ttft_target=None, max_requests=3)
        due = 20 + refuse(p, 60, 7)
        serve(p, 21, 20, 21)
        p >> one(61) << nothing >> at(due) >> one(62, 7) << refused(61, FULL)
        for request, goes in [(21, 22), (22, 23), (23, 62)]:
            serve(p, due + request, request, goes)

    def test_nobody_who_was_there_before_it_gives_way(self, play):
        p = crowded(play, waiting=2, ttft_target=None, max_requests=3)
        due = 20 + refuse(p, 60, 7)
        p >> at(due) >> one(61, 7) << refused(61, FULL)

    def test_where_only_others_wait_the_longest_backlog_gives_way(self, play):
        p = at_a_rate(play, ttft_target=None, max_requests=3) >> one(22, flow="a") >> one(23, flow="b") << nothing
        due = 20 + refuse(p, 60, 7, flow="c")
        p >> at(due)
        serve(p, due, 20, 21)
        p >> one(61, flow="b") << nothing >> one(62, 7, flow="c") << refused(61, FULL)

    def test_one_that_would_wait_in_vain_takes_nobodys_place(self, play):
        p = crowded(play, waiting=2, ttft_target=None, max_requests=3)
        p >> one(60, flow="b", ttft=0.1) << refused(60, TOO_LONG) >> one(61, flow="b") << refused(23, FULL)

    def test_who_has_a_turn_of_its_own_gives_way_to_nobody(self, play):
        p = crowded(play, waiting=1, ttft_target=None, max_requests=2)
        times = [refuse(p, 60 + key, key) for key in (1, 2, 3)]
        serve(p, 20.1, 20, 21)
        serve(p, 20.2, 21, 22)
        p >> at(20 + times[-1]) >> one(71, 1) >> one(72, 2) << nothing >> one(73, 3) << refused(73, FULL)


class TestTooEarly:
    def test_it_is_told_the_same_moment_and_cause_again(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        for now in (20.5, 22.0, 24.5):
            p >> at(now)
            assert now + refuse(p, int(now * 10), 7) == pytest.approx(due)
        assert len(p.controller._promises) == 6

    def test_shortly_before_it_is_told_a_second(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due - 0.1) >> Tick()
        p.pending.clear()
        assert refuse(p, 61, 7) == 1.0
        p >> at(due + 0.9) >> one(62, 7) << nothing

    def test_it_takes_no_place_in_the_queue(self, play):
        p = crowded(play, waiting=0)
        refuse(p, 60, 7, ttft=0.1)
        p >> one(61) << nothing >> one(62, 7) << refused(62, TOO_LONG) >> one(63) << nothing

    def test_where_there_is_room_it_goes_and_its_promise_is_used(self, play):
        p = crowded(play, waiting=0)
        refuse(p, 60, 7, ttft=0.1)
        serve(p, 20.2, 20, 21)
        serve(p, 20.3, 21)
        p >> one(61, 7) << Dispatch(61, "a")
        assert len(p.controller._promises) == 0

    def test_it_does_not_go_before_a_request_that_is_about_to_come_back(self, play):
        p = crowded(play, waiting=0)
        refuse(p, 60, 7, ttft=0.1)
        refuse(p, 61, 8, ttft=0.1)
        serve(p, 20.2, 20, 21)
        serve(p, 20.3, 21)
        p >> one(62, 8) << refused(62, TOO_LONG) >> one(63, 7) << Dispatch(63, "a")


def test_a_client_that_leaves_takes_its_turn_with_it(play):
    p = crowded(play)
    due = 20 + refuse(p, 60, 7)
    p >> at(due) >> one(61, 7) << nothing >> Cancelled(61) << nothing
    assert not p.controller._promises._flows


def test_while_only_observed_nobody_is_held_back(play):
    p = play(mode=Mode.OBSERVE) >> up("a", seqs=1) >> one(1, 7) << Dispatch(1, "a")
    p >> one(2, 7) << Dispatch(2, "a", would="queued")
    assert len(p.controller._promises) == 0


def test_once_only_observed_who_comes_back_early_goes_too(play):
    p = crowded(play, waiting=0)
    refuse(p, 60, 7, ttft=0.1)
    refuse(p, 61, 8, ttft=0.1)
    p >> changed(mode=Mode.OBSERVE)
    p.pending.clear()
    p >> one(62, 8) << Dispatch(62, "a", would=TOO_LONG)


class TestExplained:
    def test_who_would_come_too_early_is_told_so(self, play):
        p = crowded(play)
        due = 20 + refuse(p, 60, 7)
        p >> at(22)
        answer = p.controller.explain(one(99, 7), 22.0)
        assert (answer.verdict, answer.rule, answer.endpoint) == (TOO_LONG, "promise", None)
        assert 22 + answer.retry_after == pytest.approx(due)

    def test_who_would_come_back_in_time_goes_before_its_flow(self, play):
        p = crowded(play)
        due = promised(p, 60, 7)
        p >> at(due) >> Tick()
        p.pending.clear()
        p >> one(61) << nothing
        answer = p.controller.explain(one(99, 7), due)
        assert (answer.verdict, answer.rule) == ("queue", "sequences")

    def test_a_newcomer_is_told_what_it_would_be_promised(self, play):
        p = crowded(play)
        refuse(p, 60, 7)
        answer = p.controller.explain(one(99, 8), 20.0)
        assert answer.retry_after == refuse(p, 61, 8)
