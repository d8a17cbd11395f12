"""The product, as scripts: a core that takes over what an earlier one had in flight and in its queue."""

from dataclasses import replace

import pytest

from gateway.admission import controller
from gateway.admission.commands import Dispatch
from gateway.admission.events import Back, Cancelled, EndpointDown, Finished, Returned, ShutdownStarted, Tick, Verdict
from gateway.admission.outcomes import Outcome
from tests.unit.admission.playbook import (
    aborted,
    arrived,
    at,
    declared,
    done,
    nothing,
    progress,
    refused,
    up,
)
from tests.unit.admission.test_controller_promises import crowded, one, refuse
from tests.unit.admission.test_controller_turns import at_a_rate, costs_100, let_in


def next_reports(p, request):
    """The count at which the core wants to hear of a request."""
    return p.controller.next_reports([request])[request]


class TestInFlight:
    def test_it_holds_its_blocks_until_it_is_done(self, play):
        p = play() >> up("a", blocks=100) >> declared(arrived(1, blocks=60), "a", 1) << nothing
        assert (p.endpoint("a").held_blocks, p.endpoint("a").in_flight) == (60, 1)
        p >> arrived(2, blocks=60) << nothing
        p >> done(1) << Dispatch(2, "a")
        assert p.endpoint("a").held_blocks == 60

    def test_one_whose_front_came_back_counts_once(self, play):
        p = play() >> up("a") >> arrived(1, blocks=40) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=20) << Dispatch(2, "a") >> aborted(1) >> aborted(2) << nothing
        p >> declared(arrived(1, blocks=40), "a", 1) << nothing
        assert (p.endpoint("a").held_blocks, p.endpoint("a").in_flight, p.endpoint("a").aborting) == (60, 2, 1)
        p >> at(1) >> Tick() << nothing
        assert (p.endpoint("a").held_blocks, p.endpoint("a").in_flight, p.endpoint("a").aborting) == (40, 1, 0)
        p >> done(1) << nothing
        assert p.endpoint("a").held_blocks == 0

    def test_it_keeps_the_deadline_it_had(self, play):
        p = play(ttl=10) >> up("a") >> at(20) >> declared(arrived(1, waited=8), "a")
        p >> at(21.5) >> Returned(1, Back.BUSY) << nothing >> at(22) >> Tick() << refused(1, Outcome.QUEUE_TIMEOUT)

    def test_it_counts_from_the_tokens_it_had(self, play):
        p = play() >> up("a") >> declared(arrived(1, 10), "a", 30)
        assert (p.endpoint("a").held_blocks, next_reports(p, 1)) == (3, 39)  # 40 of 48 tokens
        p >> progress(r1=38) << nothing
        assert p.endpoint("a").held_blocks == 3
        p >> progress(r1=39) << nothing
        assert (p.endpoint("a").held_blocks, next_reports(p, 1)) == (4, 55)

    def test_what_it_had_is_not_taken_back_by_an_older_report(self, play):
        p = play() >> up("a") >> declared(arrived(1, 10), "a", 30) >> progress(r1=5) << nothing
        assert (p.endpoint("a").held_blocks, next_reports(p, 1)) == (3, 39)

    def test_of_a_group_it_counts_every_sequence(self, play):
        p = play() >> up("a") >> declared(arrived(1, 10, n=3), "a", 3 * 30)
        assert (p.endpoint("a").held_blocks, p.endpoint("a").sequences) == (9, 3)

    def test_with_tokens_it_is_past_its_prefill_and_without_it_is_not(self, play):
        p = play() >> up("a", blocks=90) >> declared(arrived(1, blocks=30), "a", 1)
        assert p.endpoint("a").unconfirmed_sequences == 0
        p >> declared(arrived(2, blocks=20), "a") >> arrived(3, blocks=11) << nothing
        assert (p.endpoint("a").unconfirmed_sequences, p.endpoint("a").closed_by) == (1, ())
        p >> progress(r2=1) << Dispatch(3, "a")

    def test_more_may_be_declared_than_the_endpoint_would_take(self, play):
        p = play() >> up("a", blocks=100, seqs=1)
        for request in range(1, 4):
            p >> declared(arrived(request, blocks=50), "a", 1) << nothing
        assert (p.endpoint("a").held_blocks, p.endpoint("a").in_flight) == (150, 3)
        p >> arrived(4) << nothing >> done(1) << nothing >> done(2) << nothing >> done(3) << Dispatch(4, "a")

    def test_it_counts_against_the_sequences_of_its_endpoint(self, play):
        p = play() >> up("a", seqs=1) >> declared(arrived(1), "a", 5) >> arrived(2) << nothing
        p >> done(1) << Dispatch(2, "a")

    def test_on_an_endpoint_that_is_down_it_holds_its_blocks_too(self, play):
        p = play() >> up("a", seqs=1) >> EndpointDown("a", "not probed yet") >> declared(arrived(1), "a", 5) << nothing
        p >> arrived(2) << nothing >> up("a", seqs=1) << nothing
        assert p.endpoint("a").in_flight == 1
        p >> done(1) << Dispatch(2, "a")

    def test_a_core_that_drains_takes_it_over_all_the_same(self, play):
        p = play() >> up("a") >> ShutdownStarted() >> declared(arrived(1), "a", 5) << nothing
        assert p.endpoint("a").in_flight == 1
        p >> done(1) << nothing
        assert p.endpoint("a").in_flight == 0

    def test_its_tokens_say_nothing_of_how_long_a_prefill_takes(self, play):
        predicted = []
        for before in (declared(arrived(1, 500), "a", 30), Tick()):
            p = play() >> up("a") >> before >> arrived(2, 500) << Dispatch(2, "a") >> at(2) >> progress(r2=1) << nothing
            predicted.append(p.controller.explain(arrived(3, 500), 2).predicted_prefill)
        assert predicted[0] == predicted[1] > 0

    def test_its_length_is_learned(self, play):
        p = play() >> up("a") >> declared(arrived(1), "a", 5) >> done(1, 40) << nothing
        assert p.controller.learned().everything == (40,)

    def test_it_is_charged_to_its_flow(self, play):
        p = play() >> up("a", seqs=2) >> declared(arrived(1), "a", 5) >> declared(arrived(2), "a", 5)
        p >> arrived(3, flow="a") << nothing >> arrived(4, flow="b") << nothing
        p >> declared(arrived(5, flow="a"), "a", 5) << nothing
        p >> done(1) << nothing >> done(2) << Dispatch(4, "a") >> done(5) << Dispatch(3, "a")


class TestItsEnd:
    def test_an_abort_frees_it_after_a_step_of_the_engine(self, play):
        p = play() >> up("a") >> declared(arrived(1, blocks=60), "a", 1) >> declared(arrived(2), "a", 1)
        p >> aborted(1) << nothing
        assert (p.endpoint("a").aborting, p.endpoint("a").held_blocks) == (1, 61)
        p >> at(0.5) >> progress(r2=2) << nothing
        assert (p.endpoint("a").aborting, p.endpoint("a").held_blocks) == (0, 1)

    @pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.FAILED])
    @pytest.mark.parametrize("generated", [0, 30])
    def test_any_other_end_frees_it_at_once_and_only_once(self, play, verdict, generated):
        p = play() >> up("a") >> declared(arrived(1), "a", generated)
        for _ in range(2):
            p >> Finished(1, verdict) << nothing
            assert (p.endpoint("a").in_flight, p.endpoint("a").held_blocks, p.endpoint("a").sequences) == (0, 0, 0)

    def test_it_comes_back_busy_and_goes_elsewhere(self, play):
        p = play() >> up("a") >> up("b") >> declared(arrived(1), "a") >> Returned(1, Back.BUSY) << Dispatch(1, "b")
        assert (p.endpoint("a").in_flight, p.endpoint("b").in_flight) == (0, 1)

    def test_it_comes_back_failed_and_is_tried_once_more_elsewhere(self, play):
        p = play() >> up("a") >> up("b") >> declared(arrived(2, blocks=20), "b", 1) >> declared(arrived(1), "a")
        p >> Returned(1, Back.FAILED) << Dispatch(1, "b")
        p >> Returned(1, Back.FAILED) << refused(1, Outcome.UPSTREAM_ERROR)

    def test_after_an_earlier_failure_it_is_not_tried_again(self, play):
        p = play() >> up("a") >> up("b") >> declared(arrived(1, failures=1, avoid="b"), "a")
        p >> Returned(1, Back.FAILED) << refused(1, Outcome.UPSTREAM_ERROR)
        assert p.endpoint("a").held_blocks == 0

    def test_a_departure_is_none_of_the_queues(self, play):
        p = play() >> up("a") >> declared(arrived(1), "a") >> Cancelled(1) << nothing
        assert p.endpoint("a").in_flight == 1

    def test_how_long_it_waited_counts_where_it_waits_again(self, play):
        p = play(ttl=10) >> up("a") >> at(20) >> declared(arrived(1, waited=4), "a")
        p >> declared(arrived(2, blocks=90), "a", 1) >> at(21) >> Returned(1, Back.BUSY) << nothing
        p >> at(25.9) >> Tick() << nothing >> at(26) >> Tick() << refused(1, Outcome.QUEUE_TIMEOUT)


class TestIgnored:
    def test_where_its_endpoint_is_not_known(self, play):
        p = play() >> up("a") >> declared(arrived(1), "b", 5) << nothing
        assert p.endpoint("a").in_flight == 0
        p >> progress(r1=6) << nothing >> done(1) << nothing
        p >> arrived(1) << Dispatch(1, "a")

    def test_where_it_is_in_flight_already(self, play):
        p = play() >> up("a") >> up("b") >> arrived(1) << Dispatch(1, "a")
        p >> declared(arrived(1, blocks=50), "b", 5) << nothing >> declared(arrived(1, blocks=50), "a", 5) << nothing
        assert [(p.endpoint(name).in_flight, p.endpoint(name).held_blocks) for name in "ab"] == [(1, 1), (0, 0)]

    def test_where_it_waits_already(self, play):
        p = play() >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a") >> arrived(2) << nothing
        p >> declared(arrived(2), "a", 5) << nothing
        assert p.endpoint("a").in_flight == 1
        p >> done(1) << Dispatch(2, "a")

    def test_where_it_is_declared_twice(self, play):
        p = play() >> up("a")
        for generated in (5, 50):
            p >> declared(arrived(1), "a", generated) << nothing
        assert (p.endpoint("a").in_flight, p.endpoint("a").held_blocks) == (1, 1)

    def test_its_arrival_is_ignored_once_it_is_declared(self, play):
        p = play() >> up("a") >> declared(arrived(1), "a", 5) >> arrived(1) << nothing
        assert p.controller.snapshot(0).queue.depth == 0


class TestInTheQueue:
    def test_it_goes_at_once_where_there_is_room(self, play):
        play() >> up("a") >> at(9) >> arrived(1, waited=3) << Dispatch(1, "a")

    def test_it_keeps_its_deadline(self, play):
        p = play(ttl=10) >> up("a", seqs=1) >> declared(arrived(1), "a", 1)
        p >> at(20) >> arrived(2, waited=6) << nothing >> arrived(3) << nothing
        p >> at(23.9) >> Tick() << nothing >> at(24) >> Tick() << refused(2, Outcome.QUEUE_TIMEOUT)
        p >> at(29.9) >> Tick() << nothing >> at(30) >> Tick() << refused(3, Outcome.QUEUE_TIMEOUT)

    def test_without_an_endpoint_it_keeps_that_deadline_from_when_there_was_none(self, play):
        p = play(ttl=10, no_endpoint_ttl=5) >> at(20) >> arrived(1, waited=3) << nothing
        p >> at(21.9) >> Tick() << nothing >> at(22) >> Tick() << refused(1, Outcome.NO_ENDPOINT)

    def test_one_whose_time_is_over_is_refused_for_that(self, play):
        p = play(ttl=10) >> up("a", seqs=1) >> declared(arrived(1), "a", 1)
        p >> at(20) >> arrived(2, waited=10) << refused(2, Outcome.QUEUE_TIMEOUT)

    def test_its_age_is_that_of_its_whole_wait(self, play):
        p = play() >> up("a", seqs=1) >> declared(arrived(1), "a", 1) >> at(20) >> arrived(2, waited=6) << nothing
        assert p.controller.snapshot(21).queue.oldest_age == 7

    def test_who_waited_longest_and_is_told_first_goes_first(self, play):
        p = play() >> up("a", seqs=1) >> declared(arrived(1), "a", 1) >> at(20)
        p >> arrived(2, waited=6) << nothing >> arrived(3, waited=2) << nothing >> arrived(4) << nothing
        p >> done(1) << Dispatch(2, "a") >> done(2) << Dispatch(3, "a") >> done(3) << Dispatch(4, "a")

    def test_one_failure_before_leaves_it_one_try(self, play):
        p = play() >> up("a") >> up("b") >> arrived(1, waited=1, failures=1) << Dispatch(1, "a")
        p >> Returned(1, Back.FAILED) << refused(1, Outcome.UPSTREAM_ERROR)

    def test_a_refusal_for_lack_of_room_is_no_failure(self, play):
        p = play() >> up("a") >> up("b") >> arrived(1, waited=1, failures=1) << Dispatch(1, "a")
        p >> Returned(1, Back.BUSY) << Dispatch(1, "b")

    def test_it_avoids_the_endpoint_that_failed_on_it(self, play):
        p = play() >> up("a") >> up("b") >> declared(arrived(1, blocks=20), "b", 1)
        p >> arrived(2, waited=1, failures=1, avoid="a") << Dispatch(2, "b") >> arrived(3) << Dispatch(3, "a")

    def test_it_goes_there_if_there_is_no_other(self, play):
        play() >> up("a") >> arrived(1, waited=1, failures=1, avoid="a") << Dispatch(1, "a")
        play() >> up("a") >> arrived(1, waited=1, failures=1, avoid="gone") << Dispatch(1, "a")

    def test_a_full_queue_takes_it(self, play):
        p = play(max_requests=1, max_bytes=100) >> up("a", seqs=1) >> declared(arrived(1), "a", 1)
        p >> arrived(2, size=60) << nothing >> arrived(3) << refused(3, Outcome.QUEUE_FULL)
        p >> arrived(4, size=60, waited=1) << nothing >> arrived(5, size=60, waited=0.001) << nothing
        p >> arrived(6) << refused(6, Outcome.QUEUE_FULL)
        p >> done(1) << Dispatch(2, "a") >> done(2) << Dispatch(4, "a") >> done(4) << Dispatch(5, "a")

    def test_it_is_not_refused_because_it_would_wait_in_vain(self, play):
        p = at_a_rate(play)
        let_in(p, range(22, 60))
        p >> costs_100(60) << refused(60, Outcome.WAIT_TOO_LONG) >> costs_100(61, waited=0.5) << nothing

    def test_what_fits_no_endpoint_is_refused_as_ever(self, play):
        p = play() >> up("a", length=100) >> arrived(1, 200, waited=1) << refused(1, Outcome.CONTEXT_LENGTH_EXCEEDED)
        p >> ShutdownStarted() >> arrived(2, waited=1) << refused(2, Outcome.DRAINING)

    def test_who_is_known_already_keeps_its_place(self, play):
        p = play(ttl=10) >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a") >> arrived(2) << nothing
        p >> at(5) >> arrived(2, waited=9) << nothing >> at(9.9) >> Tick() << nothing
        p >> at(10) >> Tick() << refused(2, Outcome.QUEUE_TIMEOUT)


def test_one_that_failed_as_often_as_it_may_is_not_tried_again(play):
    p = play() >> up("a") >> up("b") >> arrived(1, waited=3, failures=2)
    p << refused(1, Outcome.UPSTREAM_ERROR)


class TestWarmth:
    def handed_over(self, p, play, time=20, age=0.0, **settings):
        """A core that takes over from another at its time."""
        warmth = replace(p.controller.warmth(time), age=age)
        p.pending.clear()
        return play(**settings) >> up("a", blocks=100, seqs=1) >> at(100) >> warmth << nothing

    def test_its_drain_rate_is_known_at_once(self, play):
        p = at_a_rate(play)
        rate = p.controller.snapshot(20).drain_rate
        assert self.handed_over(p, play).controller.snapshot(100).drain_rate == rate > 0

    def test_a_promise_is_kept(self, play):
        p = crowded(play)
        told = refuse(p, 60, 7)
        q = self.handed_over(p, play, age=1.5, ttft_target=None)
        q >> one(1) << Dispatch(1, "a") >> one(2) << nothing
        q >> at(100 + told - 1.5) >> one(3, 7) << nothing >> done(1) << Dispatch(3, "a")

    def test_one_that_comes_back_early_is_told_the_same_time(self, play):
        p = crowded(play)
        told = refuse(p, 60, 7)
        q = self.handed_over(p, play)
        q >> one(1) << Dispatch(1, "a") >> one(3, 7)
        assert q.pending.pop(0).retry_after == pytest.approx(told, abs=0.01)

    def test_a_promise_that_is_over_meanwhile_is_none(self, play):
        p = crowded(play)
        refuse(p, 60, 7)
        q = self.handed_over(p, play, age=600.0, ttft_target=None)
        q >> one(1) << Dispatch(1, "a") >> one(2) << nothing >> one(3, 7) << nothing
        assert not len(q.controller._promises)

    def test_who_had_more_than_its_share_waits_for_the_others(self, play):
        p = play(ttft_target=None) >> up("a", seqs=1) >> arrived(1, flow="x") << Dispatch(1, "a")
        for number in range(2, 6):
            p >> arrived(number, 1500, flow="x")
        p >> arrived(6, 1500, flow="y") << nothing
        p >> done(1)
        p.pending.clear()
        q = self.handed_over(p, play, ttft_target=None)
        ((_, first, _),) = p.controller.warmth(20).debts
        other = "y" if first == "x" else "x"
        q >> arrived(1, flow="z") << Dispatch(1, "a") >> arrived(2, flow=other) >> arrived(3, flow=first)
        q >> arrived(4, flow=other) << nothing >> done(1) << Dispatch(2, "a") >> done(2) << Dispatch(4, "a")

    def test_what_it_tells_is_bounded(self, play, monkeypatch):
        p = crowded(play)
        for key in range(1, 6):
            refuse(p, 100 + key, key)
        assert len(p.controller.warmth(20).promises) == 5
        monkeypatch.setattr(controller, "MOST_WARM", 3)
        assert len(p.controller.warmth(20).promises) == 3
