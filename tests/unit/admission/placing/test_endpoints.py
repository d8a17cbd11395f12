from math import inf

import pytest

from gateway.admission.events import Arrived, Capacity, Demand, EndpointDown, EndpointGone, EndpointUp, Observed
from gateway.admission.placing.endpoint import UNBOUNDED
from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.request import RequestRecord
from gateway.admission.policy import Policy
from gateway.admission.prediction.predictor import Predictor

PREDICTOR = Predictor()


@pytest.fixture
def endpoints():
    return Endpoints(Policy(), PREDICTOR)


def of(length):
    """An endpoint that serves prompts one shorter than that."""
    return Capacity(length, 1000)


def request(*prompts, avoid=None, least_length=0, whole_length=0, holder=None):
    demand = Demand(prompts, 10, least_length=least_length, whole_length=whole_length)
    arrival = Arrived(1, demand, holder=holder)
    made = RequestRecord(arrival, 0.0, PREDICTOR.kind(arrival))
    made.avoid = frozenset({avoid} - {None})
    return made


def names(endpoints):
    return [endpoint.id for endpoint in endpoints]


def test_nobody_is_there_at_first(endpoints):
    assert (list(endpoints), endpoints.live, endpoints.longest_prompts, endpoints.since) == ([], [], (), -inf)
    assert endpoints.get("a") is None


def test_those_that_take_traffic_are_live_by_id(endpoints):
    for name in ("b", "c", "a"):
        endpoints.apply(EndpointUp(name, of(100)), 0.0)
    endpoints.apply(EndpointDown("b", "killed"), 1.0)
    assert names(endpoints.live) == ["a", "c"]
    assert sorted(names(endpoints)) == ["a", "b", "c"]


def test_it_is_told_since_when_anybody_is_live(endpoints):
    endpoints.apply(EndpointUp("a", of(100)), 1.0)
    assert endpoints.since == 1.0
    endpoints.apply(EndpointUp("b", of(100)), 2.0)
    endpoints.apply(EndpointDown("a", "killed"), 3.0)
    assert endpoints.since == 1.0
    endpoints.apply(EndpointDown("b", "killed"), 4.0)
    assert endpoints.since == 4.0


def test_it_is_told_since_when_the_longest_is_live(endpoints):
    endpoints.apply(EndpointUp("small", of(100)), 1.0)
    endpoints.apply(EndpointUp("big", of(1000)), 2.0)
    assert (endpoints.longest_live, endpoints.since) == (999, 2.0)
    endpoints.apply(EndpointUp("alike", of(1000)), 3.0)
    endpoints.apply(EndpointDown("alike", "killed"), 4.0)
    endpoints.apply(EndpointDown("small", "killed"), 5.0)
    assert endpoints.since == 2.0
    assert endpoints.serve(request(999))
    endpoints.apply(EndpointDown("big", "killed"), 6.0)
    assert (endpoints.longest_live, endpoints.since) == (-1, 6.0)
    assert not endpoints.serve(request(1))


def test_one_that_came_up_again_has_its_new_capacity(endpoints):
    endpoints.apply(EndpointUp("a", of(100)), 0.0)
    endpoints.apply(EndpointDown("a", "killed"), 1.0)
    endpoints.apply(EndpointUp("a", of(50)), 2.0)
    assert names(endpoints.live) == ["a"]
    assert endpoints.longest_prompts == (49,)


def test_one_that_is_down_still_says_how_far_the_pool_reaches(endpoints):
    endpoints.apply(EndpointUp("big", of(1000)), 0.0)
    endpoints.apply(EndpointUp("small", of(100)), 0.0)
    endpoints.apply(EndpointDown("big", "killed"), 1.0)
    assert endpoints.longest_prompts == (99, 999)


def test_a_removed_endpoint_does_not_extend_the_reach_of_the_pool(endpoints):
    endpoints.apply(EndpointUp("big", of(1000)), 0.0)
    endpoints.apply(EndpointUp("small", of(100)), 0.0)
    endpoints.apply(EndpointGone("big"), 1.0)
    assert endpoints.longest_prompts == (99,)
    assert names(endpoints) == ["small"]


def test_it_is_kept_until_what_runs_there_has_ended(endpoints):
    endpoints.apply(EndpointUp("a", of(100)), 0.0)
    endpoint = endpoints.get("a")
    reservation = endpoint.reserve(request(10), 0.0)
    endpoints.apply(EndpointGone("a"), 1.0)
    assert endpoints.get("a") is endpoint
    assert endpoints.longest_prompts == ()
    endpoint.release(reservation, None, 2.0, aborted=False)
    endpoints.advance(endpoint, 2.0)
    assert endpoints.get("a") is None


def test_it_is_kept_while_an_aborted_request_counts(endpoints):
    endpoints.apply(EndpointUp("a", of(100)), 0.0)
    endpoint = endpoints.get("a")
    endpoint.release(endpoint.reserve(request(10), 0.0), None, 1.0, aborted=True)
    endpoints.apply(EndpointGone("a"), 1.0)
    assert endpoints.get("a") is endpoint
    endpoints.advance(endpoint, 2.0)
    assert endpoints.get("a") is None


def test_noise_about_unknown_endpoints_changes_nothing(endpoints):
    endpoints.apply(EndpointGone("z"), 1.0)
    assert list(endpoints) == []


def test_a_request_stands_with_those_that_can_go_where_it_can(endpoints):
    endpoints.apply(EndpointUp("big", of(1000)), 0.0)
    endpoints.apply(EndpointUp("small", of(100)), 0.0)
    assert endpoints.lane(request(50)) == endpoints.lane(request(99)) == (99, frozenset(), None, None)
    assert endpoints.lane(request(100)) == endpoints.lane(request(10, 999)) == (999, frozenset(), None, None)
    assert endpoints.lane(request(1000)) is None
    assert endpoints.lane(request(50, avoid="big")) == (99, frozenset({"big"}), None, None)


def test_before_any_endpoint_is_known_all_stand_in_one(endpoints):
    assert endpoints.lane(request(10**6)) == (UNBOUNDED, frozenset(), None, None)


def test_eligible_are_the_live_ones_that_serve_its_longest_prompt(endpoints):
    endpoints.apply(EndpointUp("big", of(1000)), 0.0)
    endpoints.apply(EndpointUp("small", of(100)), 0.0)
    assert names(endpoints.eligible(request(50, 60))) == ["big", "small"]
    assert names(endpoints.eligible(request(10, 100))) == ["big"]
    endpoints.apply(EndpointDown("big", "killed"), 1.0)
    assert endpoints.eligible(request(10, 100)) == []


def test_an_output_limit_that_shorter_ones_refuse_waits_for_a_longer_one(endpoints):
    endpoints.apply(EndpointUp("big", of(1000)), 0.0)
    endpoints.apply(EndpointUp("small", of(100)), 0.0)
    short, long = request(50, least_length=100), request(50, least_length=101)
    assert names(endpoints.eligible(short)) == ["big", "small"]
    assert names(endpoints.eligible(long)) == ["big"]
    assert (endpoints.lane(short), endpoints.lane(long)) == (
        (99, frozenset(), None, None),
        (999, frozenset(), None, None),
    )
    endpoints.apply(EndpointDown("big", "killed"), 1.0)
    assert (endpoints.eligible(long), endpoints.serve(long), endpoints.serve(short)) == ([], False, True)
    endpoints.apply(EndpointGone("big"), 2.0)
    assert (names(endpoints.eligible(long)), endpoints.serve(long)) == (["small"], True)


def test_an_answer_that_shorter_ones_cut_goes_to_a_longer_one_while_that_is_live(endpoints):
    endpoints.apply(EndpointUp("big", of(1000)), 0.0)
    endpoints.apply(EndpointUp("small", of(100)), 0.0)
    cut = request(50, whole_length=101)
    assert (names(endpoints.eligible(cut)), endpoints.lane(cut)) == (["big"], (999, frozenset(), None, None))
    endpoints.apply(EndpointDown("big", "killed"), 1.0)
    assert (names(endpoints.eligible(cut)), endpoints.lane(cut)) == (["small"], (99, frozenset(), None, None))


def test_an_output_limit_beyond_every_cache_leaves_the_choice_to_the_prompt(endpoints):
    endpoints.apply(EndpointUp("a", Capacity(1000, 5, 16)), 0.0)
    endpoints.apply(EndpointUp("b", Capacity(1000, 3, 16)), 0.0)
    assert names(endpoints.eligible(request(40, least_length=1000))) == ["a", "b"]
    assert names(endpoints.eligible(request(60, least_length=1000))) == ["a"]


def test_the_one_that_failed_is_left_out_where_there_is_another(endpoints):
    endpoints.apply(EndpointUp("a", of(100)), 0.0)
    assert names(endpoints.eligible(request(50, avoid="a"))) == ["a"]
    endpoints.apply(EndpointUp("b", of(100)), 0.0)
    assert names(endpoints.eligible(request(50, avoid="a"))) == ["b"]


def test_one_that_lacks_what_it_names_comes_after_one_that_failed(endpoints):
    for name in ("a", "b"):
        endpoints.apply(EndpointUp(name, of(100)), 0.0)
    both = request(50)
    both.lacking, both.avoid = frozenset({"a"}), frozenset({"a", "b"})
    assert names(endpoints.eligible(both)) == ["b"]
    both.lacking = both.avoid
    assert names(endpoints.eligible(both)) == ["a", "b"]


def test_the_holder_of_what_it_goes_on_with_is_the_only_one_while_it_is_live(endpoints):
    for name in ("a", "b", "c"):
        endpoints.apply(EndpointUp(name, of(100)), 0.0)
    assert names(endpoints.eligible(request(50, holder="b"))) == ["b"]
    assert names(endpoints.eligible(request(50, holder="b", avoid="b"))) == ["b"]
    assert names(endpoints.eligible(request(50, holder="elsewhere"))) == ["a", "b", "c"]
    lacking = request(50, holder="b", avoid="b")
    lacking.lacking = lacking.avoid
    assert names(endpoints.eligible(lacking)) == ["a", "c"], "an adapter, too"
    endpoints.reach.lost(1, "b", 0.0)
    assert endpoints.eligible(request(50, holder="b")) == [], "it waits, as for the only one"
    endpoints.reach.found("b")
    assert endpoints.lane(request(50, holder="b")) == (99, frozenset(), None, "b")
    endpoints.apply(EndpointDown("b", "killed"), 1.0)
    assert names(endpoints.eligible(request(50, holder="b"))) == ["a", "c"]


def cold(endpoints):
    return {endpoint.id: (endpoint.cold, endpoint.all_cold) for endpoint in endpoints}


def scraped(endpoints, name, tokens, now=1.0):
    endpoints.observe(endpoints.get(name), Observed(name, now, 0.0, 0, 0, tokens), now)


def test_which_is_cold_and_whether_all_are(endpoints):
    for name in ("a", "b", "c"):
        endpoints.apply(EndpointUp(name, of(100)), 0.0)
    scraped(endpoints, "a", 0.0)
    assert cold(endpoints) == dict.fromkeys("abc", (True, True))
    scraped(endpoints, "b", 5.0)
    assert cold(endpoints) == {"a": (True, False), "b": (False, False), "c": (True, False)}
    scraped(endpoints, "c", None)
    assert not endpoints.get("c").cold, "what an engine does not say is no reason to spare it"
    for name in ("b", "c"):
        endpoints.apply(EndpointDown(name, "killed"), 2.0)
    assert endpoints.get("a").all_cold, "nobody is left to go to"
    endpoints.apply(EndpointUp("b", of(100)), 3.0)
    assert endpoints.get("b").cold, "it is another process by now"


def test_the_others_hear_of_one_that_answered_with_its_next_scrape(endpoints):
    for name in ("a", "b"):
        endpoints.apply(EndpointUp(name, of(100)), 0.0)
    endpoints.get("b").cold = False
    scraped(endpoints, "b", 5.0)
    assert cold(endpoints) == {"a": (True, False), "b": (False, False)}
