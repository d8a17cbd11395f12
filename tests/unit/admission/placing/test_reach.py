from math import inf

import pytest

from gateway.admission.events import FRONT_BITS
from gateway.admission.placing.reach import Reach
from gateway.admission.tuning import TUNING

MINE, OURS, THEIRS = (1 << FRONT_BITS) + 1, (1 << FRONT_BITS) + 2, (2 << FRONT_BITS) + 1
SOON = TUNING.unreached


@pytest.fixture
def reach():
    made = Reach()
    made.lost(MINE, "a", 0.0)
    return made


def test_every_front_reaches_all_until_it_fails():
    reach = Reach()
    assert not reach.until
    assert reach.reaches(MINE, "a")
    assert reach.limited(MINE) is None
    assert reach.changes_at == inf


def test_what_one_request_could_not_reach_no_other_of_its_front_tries(reach):
    assert reach.until
    assert not reach.reaches(OURS, "a")
    assert reach.reaches(OURS, "b")
    assert reach.limited(OURS) == 1


def test_other_fronts_go_on(reach):
    assert reach.reaches(THEIRS, "a")
    assert reach.limited(THEIRS) is None


def test_only_the_first_loss_makes_a_front_limited(reach):
    """The whole queue is sorted into lanes again for it."""
    assert not reach.lost(OURS, "a", 0.1)
    assert not reach.lost(MINE, "b", 0.1)
    assert reach.lost(THEIRS, "a", 0.1)


def test_it_is_tried_again_in_time(reach):
    reach.lost(OURS, "b", 0.5)
    assert reach.changes_at == SOON
    reach.pass_time(SOON)
    assert (reach.reaches(MINE, "a"), reach.reaches(MINE, "b")) == (True, False)
    assert reach.changes_at == 0.5 + SOON
    reach.pass_time(0.5 + SOON)
    assert not reach.until
    assert reach.changes_at == inf


def test_another_failure_lets_it_wait_anew(reach):
    reach.lost(OURS, "a", 0.5)
    assert reach.changes_at == 0.5 + SOON


def test_one_that_came_up_is_tried_at_once(reach):
    reach.lost(THEIRS, "a", 0.0)
    reach.lost(THEIRS, "b", 0.0)
    reach.found("a")
    assert reach.reaches(MINE, "a")
    assert reach.reaches(THEIRS, "a")
    assert not reach.reaches(THEIRS, "b")
