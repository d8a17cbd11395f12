"""Seconds of a pool that serves 100 tokens of service in each: a request of 100 takes one."""

from itertools import count, pairwise

import pytest

from gateway.admission.events import Arrived, Demand
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.request import RequestRecord
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.queueing import promises as module
from gateway.admission.queueing.jitter import CAP
from gateway.admission.queueing.promises import Pressure, Promises
from gateway.admission.tuning import TUNING

FULL = Outcome.QUEUE_FULL


class Refusals:
    """Promises, and requests to refuse."""

    def __init__(self, **weights):
        self.promises = Promises(weights)
        self.orders = count(1)

    def request(self, key=1, *, cost=100.0, flow="", band=0, queue_budget=5.0):
        arrival = Arrived(1, Demand((10,), 10), flow=flow, band=band, key=key)
        made = RequestRecord(arrival, 0.0, Predictor().kind(arrival))
        made.cost, made.queue_budget, made.order = cost, queue_budget, next(self.orders)
        return made

    def refuse(self, key=1, *, wait=0.0, now=0.0, weight=0.0, rate=100.0, **settings):
        return self.promises.grant(self.request(key, **settings), FULL, Pressure(wait, rate, weight), now)

    def come_back(self, key, now):
        promise = self.promises.find(key, now)
        self.promises.use(promise, now)
        return promise


@pytest.fixture
def refusals():
    return Refusals(heavy=3.0)


def test_it_comes_back_a_little_before_its_turn(refusals):
    assert refusals.refuse(wait=10.0, now=100.0) == 110.0 - TUNING.promise_lead


def test_half_of_a_small_queue_budget_is_left_for_waiting(refusals):
    assert refusals.refuse(wait=10.0, queue_budget=1.0) == 9.5


def test_nobody_is_told_to_come_back_at_once(refusals):
    assert refusals.refuse(wait=0.1) == 1.0


def test_consecutive_refusals_are_told_times_as_far_apart_as_they_can_be_served(refusals):
    dues = [refusals.refuse(key, wait=10.0, cost=300.0) for key in range(1, 20)]
    assert [later - earlier for earlier, later in pairwise(dues)] == pytest.approx([3.0] * 18)


def test_what_the_rate_seems_to_be_from_one_to_the_next_hardly_matters(refusals):
    told = []
    for step in range(200):  # one comes and one goes in each second, and the rate is off by up to half
        now = float(step)
        told.append(refusals.refuse(step + 1, wait=20.0, now=now, rate=(60.0, 150.0, 90.0, 120.0)[step % 4]) - now)
        if (promise := refusals.promises.find(step - 20, now)) is not None:
            refusals.promises.use(promise, now)
            refusals.promises.end(promise)
    assert max(told[50:]) < 1.25 * min(told[50:])


def test_it_holds_until_a_little_after_its_moment(refusals):
    due = refusals.refuse(wait=6.0)
    assert refusals.promises.find(1, due + TUNING.promise_late).due == due
    assert refusals.promises.find(1, due + TUNING.promise_late + 0.01) is None


def test_who_was_told_a_long_time_may_be_later(refusals):
    due = refusals.refuse(wait=42.0)
    assert refusals.promises.find(1, due * (1 + TUNING.promise_late_share)) is not None
    assert refusals.promises.find(1, due * (1 + TUNING.promise_late_share) + 0.01) is None


def test_it_has_the_turn_of_its_first_arrival(refusals):
    refusals.refuse(7)
    assert refusals.come_back(7, 1.5).order == 1


def test_a_promise_is_used_once(refusals):
    refusals.refuse(7)
    refusals.come_back(7, 1.5)
    assert refusals.promises.find(7, 1.5) is None
    assert len(refusals.promises) == 0


def test_equal_requests_have_one_each_and_the_first_is_used_first(refusals):
    first, second = refusals.refuse(7, wait=10.0), refusals.refuse(7, wait=10.0)
    assert first < second
    assert refusals.come_back(7, first).order == 1
    assert refusals.promises.find(7, first).due == second


def test_nothing_is_known_of_another(refusals):
    refusals.refuse(7)
    assert refusals.promises.find(8, 1.5) is None


def test_what_is_too_far_off_is_not_promised(refusals):
    given = [refusals.refuse(key, cost=1000.0) for key in range(1, 20)]
    assert given.count(None) == 19 - TUNING.promise_horizon / 10
    assert given[-1] is None
    assert refusals.refuse(30, wait=TUNING.promise_horizon) is None


def test_who_did_not_come_leaves_room_for_others(refusals):
    for key in range(1, 20):
        refusals.refuse(key, cost=1000.0)
    later = TUNING.promise_horizon + CAP * TUNING.promise_late_share + 1
    assert refusals.refuse(30, now=later) == later + 1.0
    assert len(refusals.promises) == 1


def test_the_time_of_one_who_goes_early_is_there_for_others(refusals):
    dues = [refusals.refuse(key, wait=10.0) for key in (1, 2, 3)]
    refusals.promises.end(refusals.come_back(1, 2.0))
    assert refusals.refuse(4, wait=2.0, now=2.0) == dues[-1]


def test_who_is_back_and_waits_is_still_owed_its_service(refusals):
    refusals.refuse(1, cost=2000.0)
    back = refusals.come_back(1, 1.5)
    assert refusals.refuse(2, now=1.5) == 1.5 + 20.0 - TUNING.promise_lead
    refusals.promises.end(back)
    assert refusals.refuse(3, now=1.5) < 1.5 + 20.0 + 2


@pytest.mark.parametrize("promised", [0, 5])
def test_other_weights_are_in_force_at_once(refusals, promised):
    def told(of):
        for key in range(1, promised + 1):
            of.refuse(key, flow="light", cost=300.0)
            of.refuse(10 + key, flow="grows", cost=300.0)
        if of is refusals:
            of.promises.govern({"grows": 9.0})
        for key in range(30, 40):
            of.refuse(key, flow="light", cost=300.0)
        return [of.refuse(key, flow="grows", weight=10.0, wait=20.0) for key in range(40, 50)]

    apart = [later - earlier for earlier, later in pairwise(told(refusals))]
    assert apart == pytest.approx([10 / 9] * 9), "nine of ten parts of the rate"
    for alike in [*refusals.promises._by_fingerprint]:
        refusals.promises.end(refusals.come_back(alike, 1.0))
    assert [*refusals.promises._flows, *refusals.promises._bands] == [], "all of what was promised is settled"


class TestTwice:
    """One that had its turn, and nobody could take it before its patience was over."""

    def test_it_comes_back_at_once_and_has_the_same_turn(self, refusals):
        refusals.refuse(1, wait=30.0)
        for key in range(2, 9):
            refusals.refuse(key, wait=30.0)
        again = refusals.request(1)
        again.promise = refusals.come_back(1, 29.0)
        again.order = again.promise.order
        refusals.promises.end(again.promise)
        assert refusals.promises.grant(again, Outcome.WAIT_TOO_LONG, Pressure(30.0, 100.0, 0.0), 34.0) == 35.0
        assert refusals.come_back(1, 35.0).order == 1

    def test_the_others_are_told_what_they_would_have_been(self, refusals):
        dues = [refusals.refuse(key, wait=30.0) for key in (1, 2)]
        again = refusals.request(1)
        again.promise = refusals.come_back(1, 28.0)
        refusals.promises.end(again.promise)
        refusals.promises.grant(again, FULL, Pressure(2.0, 100.0, 0.0), 28.0)
        assert refusals.refuse(3, wait=2.0, now=28.0) == dues[-1] + 1.0


class TestFlows:
    def test_a_flow_has_its_share_of_what_drains(self, refusals):
        for key in range(1, 11):
            refusals.refuse(key, flow="a", wait=5.0)
        assert refusals.refuse(20, flow="b", wait=5.0) == 6.0 - TUNING.promise_lead
        dues = [refusals.refuse(key, flow="a", wait=5.0) for key in range(30, 34)]
        assert [later - earlier for earlier, later in pairwise(dues)] == pytest.approx([2.0] * 3)

    def test_flows_share_the_drain_rate_by_weight(self, refusals):
        refusals.refuse(1, flow="a")
        dues = [refusals.refuse(key, flow="heavy") for key in range(2, 9)]
        assert [later - earlier for earlier, later in pairwise(dues[3:])] == pytest.approx([4 / 3] * 3)

    def test_who_waits_has_a_share_too(self, refusals):
        dues = [refusals.refuse(key, wait=4.0, weight=2.0) for key in range(1, 5)]
        assert [later - earlier for earlier, later in pairwise(dues)] == pytest.approx([2.0] * 3)

    def test_many_with_one_request_each_do_not_come_together(self, refusals):
        dues = [refusals.refuse(key, flow=f"flow {key}", wait=3.0) for key in range(1, 30)]
        assert [later - earlier for earlier, later in pairwise(dues)] == pytest.approx([1.0] * 28)

    def test_more_urgent_bands_go_first(self, refusals):
        for key in range(1, 11):
            refusals.refuse(key, band=0, wait=3.0)
        assert refusals.refuse(20, band=1, wait=3.0) == pytest.approx(10 + 3 + 3 - TUNING.promise_lead)
        assert refusals.refuse(21, band=-1, wait=3.0) == 1.0

    def test_a_flow_has_only_so_many(self, refusals, monkeypatch):
        monkeypatch.setattr(module, "MOST_OF_FLOW", 3)
        assert [refusals.refuse(key, flow="a", cost=1.0) is None for key in range(5)] == [False] * 3 + [True] * 2
        assert refusals.refuse(9, flow="b", cost=1.0) is not None

    def test_a_flow_has_no_more_in_many_bands(self, refusals, monkeypatch):
        monkeypatch.setattr(module, "MOST_OF_FLOW", 3)
        given = [refusals.refuse(9 - band, flow="a", band=9 - band, cost=1.0) for band in range(5)]
        assert [due is None for due in given] == [False] * 3 + [True] * 2
        refusals.come_back(9, given[0])
        assert refusals.refuse(20, flow="a", band=20, cost=1.0, now=given[0]) is not None

    def test_all_flows_together_have_only_so_many(self, refusals, monkeypatch):
        monkeypatch.setattr(module, "MOST", 3)
        given = [refusals.refuse(key, flow=str(key), cost=1.0) is None for key in range(5)]
        assert given == [False] * 3 + [True] * 2


class TestTurns:
    """Whether one that comes too early takes the place of another."""

    def test_the_next_in_turn_takes_nothing_from_others(self, refusals):
        refusals.refuse(1, wait=10.0)
        refusals.refuse(2, wait=10.0)
        assert refusals.promises.next_in_turn(refusals.promises.find(1, 8.0), 8.0)

    def test_a_request_takes_the_turn_of_one_that_is_about_to_come_back(self, refusals):
        due = refusals.refuse(1, wait=10.0)
        refusals.refuse(2, wait=10.0)
        second = refusals.promises.find(2, 0.0)
        lead = TUNING.promise_lead
        for now, free in [(due - lead - 0.1, True), (due - lead, False), (due, False), (due + lead + 0.1, True)]:
            assert refusals.promises.next_in_turn(second, now) == free


def test_asking_leaves_no_trace_and_says_what_would_be_told(refusals):
    refusals.refuse(1, wait=5.0)
    for wait in (0.0, 9.0, 500.0):
        asked = refusals.promises.moment(refusals.request(2), Pressure(wait, 100.0, 0.0), 0.0)
        assert asked == refusals.promises.moment(refusals.request(2), Pressure(wait, 100.0, 0.0), 0.0)
        assert asked == refusals.refuse(3, wait=wait)


def test_when_all_is_over_nothing_is_kept(refusals):
    for key in range(1, 300):
        refusals.refuse(key, flow=str(key % 7), band=key % 2, now=key / 10, wait=1.0, cost=5.0)
        if key % 3:
            refusals.promises.end(refusals.come_back(key, key / 10 + 0.5))
    refusals.refuse(1000, now=1000.0)
    refusals.promises.end(refusals.come_back(1000, 1001.0))
    refusals.promises.expire(2000.0)
    promises = refusals.promises
    assert [*promises._by_fingerprint, *promises._ends, *promises._flows, *promises._bands] == []
