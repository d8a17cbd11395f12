from math import inf

import pytest

from gateway.admission.endpoint import UNBOUNDED
from gateway.admission.events import Arrived, Capacity, Demand
from gateway.admission.policy import Policy
from gateway.admission.predictor import Predictor
from gateway.admission.request import Request
from gateway.admission.roster import Roster

PREDICTOR = Predictor()


@pytest.fixture
def roster():
    return Roster(Policy(), PREDICTOR)


def of(length):
    """An endpoint that serves prompts one shorter than that."""
    return Capacity(length, 1000)


def request(*prompts, avoid=None):
    arrival = Arrived(1, Demand(prompts, 10))
    made = Request(arrival, 0.0, PREDICTOR.kind(arrival))
    made.avoid = avoid
    return made


def names(endpoints):
    return [endpoint.id for endpoint in endpoints]


def test_nobody_is_there_at_first(roster):
    assert (list(roster), roster.live, roster.reaches, roster.since) == ([], [], (), -inf)
    assert roster.get("a") is None


def test_those_that_take_traffic_are_live_by_id(roster):
    for name in ("b", "c", "a"):
        roster.came_up(name, of(100), 0.0)
    roster.went_down("b", "killed", 1.0)
    assert names(roster.live) == ["a", "c"]
    assert sorted(names(roster)) == ["a", "b", "c"]


def test_it_is_told_since_when_anybody_is_live(roster):
    roster.came_up("a", of(100), 1.0)
    assert roster.since == 1.0
    roster.came_up("b", of(100), 2.0)
    roster.went_down("a", "killed", 3.0)
    assert roster.since == 1.0
    roster.went_down("b", "killed", 4.0)
    assert roster.since == 4.0


def test_one_that_came_up_again_has_its_new_capacity(roster):
    roster.came_up("a", of(100), 0.0)
    roster.went_down("a", "killed", 1.0)
    roster.came_up("a", of(50), 2.0)
    assert names(roster.live) == ["a"]
    assert roster.reaches == (49,)


def test_one_that_is_down_still_says_how_far_the_pool_reaches(roster):
    roster.came_up("big", of(1000), 0.0)
    roster.came_up("small", of(100), 0.0)
    roster.went_down("big", "killed", 1.0)
    assert (roster.reaches, roster.reach) == ((99, 999), 999)


def test_one_that_is_gone_does_not(roster):
    roster.came_up("big", of(1000), 0.0)
    roster.came_up("small", of(100), 0.0)
    roster.went_down("big", "removed", 1.0, gone=True)
    assert roster.reaches == (99,)
    assert names(roster) == ["small"]


def test_it_is_kept_until_what_runs_there_has_ended(roster):
    roster.came_up("a", of(100), 0.0)
    endpoint = roster.get("a")
    reservation = endpoint.reserve(request(10), 0.0)
    roster.went_down("a", "removed", 1.0, gone=True)
    assert roster.get("a") is endpoint
    assert roster.reaches == ()
    endpoint.release(reservation, None, 2.0, aborted=False)
    roster.settle(endpoint, 2.0)
    assert roster.get("a") is None


def test_it_is_kept_while_an_aborted_request_counts(roster):
    roster.came_up("a", of(100), 0.0)
    endpoint = roster.get("a")
    endpoint.release(endpoint.reserve(request(10), 0.0), None, 1.0, aborted=True)
    roster.went_down("a", "removed", 1.0, gone=True)
    assert roster.get("a") is endpoint
    roster.settle(endpoint, 2.0)
    assert roster.get("a") is None


def test_noise_about_unknown_endpoints_changes_nothing(roster):
    roster.went_down("z", "removed", 1.0, gone=True)
    assert list(roster) == []


def test_a_request_stands_with_those_that_can_go_where_it_can(roster):
    roster.came_up("big", of(1000), 0.0)
    roster.came_up("small", of(100), 0.0)
    assert roster.lane(request(50)) == roster.lane(request(99)) == (99, None)
    assert roster.lane(request(100)) == roster.lane(request(10, 999)) == (999, None)
    assert roster.lane(request(1000)) is None
    assert roster.lane(request(50, avoid="big")) == (99, "big")


def test_before_any_endpoint_is_known_all_stand_in_one(roster):
    assert roster.lane(request(10**6)) == (UNBOUNDED, None)


def test_eligible_are_the_live_ones_that_serve_its_longest_prompt(roster):
    roster.came_up("big", of(1000), 0.0)
    roster.came_up("small", of(100), 0.0)
    assert names(roster.eligible(request(50, 60))) == ["big", "small"]
    assert names(roster.eligible(request(10, 100))) == ["big"]
    roster.went_down("big", "killed", 1.0)
    assert roster.eligible(request(10, 100)) == []


def test_the_one_that_failed_is_left_out_where_there_is_another(roster):
    roster.came_up("a", of(100), 0.0)
    assert names(roster.eligible(request(50, avoid="a"))) == ["a"]
    roster.came_up("b", of(100), 0.0)
    assert names(roster.eligible(request(50, avoid="a"))) == ["b"]
