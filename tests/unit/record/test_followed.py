import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Back,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointGone,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    Returned,
    Verdict,
)
from gateway.admission.policy import Policy
from gateway.record.followed import FollowedCore

UP = EndpointUp("e", Capacity(1000, 100, max_num_seqs=1))


class Followed(FollowedCore):
    def tell(self, now, *events):
        """What each ended: the request, its outcome, and when it came, was sent and had its first token."""
        told = []
        for event in events:
            for gone in self.heard(event, self.controller.handle(event, now), now):
                one = gone.carried
                told.append((gone.request, gone.outcome.value, one.came, one.sent, one.first, one.generated))
        return told


@pytest.fixture
def core():
    policy = Policy(ttft_target=None)
    followed = Followed("m", AdmissionController(policy), policy)
    followed.tell(0, UP)
    return followed


def arrived(number, **fields):
    return Arrived(number, Demand((10,), 100), **fields)


def test_a_request_is_followed_to_its_end(core):
    assert core.tell(1, arrived(1, waited=0.5)) == []
    core.tell(3, Progress(((1, 1),)))
    core.tell(4, Progress(((1, 9),)))
    assert core.tell(5, Finished(1, Verdict.DONE, 12)) == [(1, "completed", 0.5, 1, 3, 12)]


@pytest.mark.parametrize(
    ("verdict", "tokens", "outcome"),
    [
        (Verdict.DONE, None, "completed"),
        (Verdict.DONE, 0, "endpoint_refused"),
        (Verdict.ABORTED, None, "client_closed"),
        (Verdict.FAILED, None, "upstream_error"),
        (Verdict.UNSERVED, 0, "client_closed"),
    ],
)
def test_how_it_left_its_endpoint_says_how_it_ended(core, verdict, tokens, outcome):
    core.tell(1, arrived(1))
    assert [told[1] for told in core.tell(2, Finished(1, verdict, tokens))] == [outcome]


def test_a_client_that_leaves_the_queue_ends_its_request_and_one_that_is_served_does_not(core):
    core.tell(1, arrived(1), arrived(2))
    assert core.tell(2, Cancelled(1)) == []
    assert core.tell(2, Cancelled(2)) == [(2, "client_closed", 1, None, None, 0)]


def test_one_that_comes_back_begins_anew(core):
    core.tell(1, arrived(1))
    core.tell(2, Progress(((1, 5),)))
    core.tell(3, EndpointDown("e", "down: gone"), Returned(1, Back.FAILED))
    assert core.tell(4, Cancelled(1)) == [(1, "client_closed", 1, None, None, 0)]


def test_what_an_earlier_core_did_is_not_known(core):
    core.tell(5, Declared(arrived(1, waited=4), "e", 30))
    core.tell(6, Progress(((1, 40),)))
    assert core.tell(7, Finished(1, Verdict.DONE)) == [(1, "completed", 1, None, None, 40)]


def test_an_endpoint_is_up_or_down_since_it_changed(core):
    core.tell(3, UP)
    assert core.endpoint("e", 9).since == 0
    core.tell(4, EndpointDown("e", "down: gone"))
    core.tell(5, EndpointDown("e", "blocked: still"))
    assert (core.endpoint("e", 9).up, core.endpoint("e", 9).since) == (False, 4)
    core.tell(6, EndpointGone("e"), UP)
    assert core.endpoint("e", 9).since == 6


def test_preemptions_count_from_the_first_scrape(core):
    for at, preempted in ((1, 7.0), (2, 9.0)):
        core.tell(at, Observed("e", at, 0.5, 1, 0, 10.0, preempted))
    told = core.endpoint("e", 3)
    assert told.observed.preemptions - told.preempted == 2
