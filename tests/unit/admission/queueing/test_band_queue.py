import pytest

from gateway.admission.placing.request import LaneKey
from gateway.admission.queueing.band_queue import MANY, BandQueue
from tests.fakes.waiting import waiting

LANE: LaneKey = (1, frozenset(), None, None)
OTHER: LaneKey = (2, frozenset(), None, None)


class Row:
    """A band, and who waits in it."""

    def __init__(self):
        self.band = BandQueue(0, 0.0, {})
        self.turns = 0

    def join(self, flow, cost=10.0, lane=LANE):
        self.turns += 1
        request = waiting(self.turns, flow=flow, cost=cost)
        request.order = request.ticket = self.turns
        request.lane = lane
        self.band.push(request)
        return request


@pytest.fixture
def row():
    return Row()


def test_nothing_is_ahead_where_nobody_waits(row):
    assert row.band.ahead("a", LANE) == 0.0
    request = row.join("a")
    row.band.remove(request)
    assert row.band.ahead("a", LANE) == 0.0


def test_its_own_backlog_and_what_others_get_until_then_is_ahead(row):
    for _ in range(5):
        row.join("noisy")
    for _ in range(2):
        row.join("modest")
    assert row.band.ahead("new", LANE) == 20.0
    assert row.band.ahead("modest", LANE) == pytest.approx(20.0 + 30.0)
    assert row.band.ahead("noisy", LANE) == 70.0


def test_nothing_of_a_flow_in_debt_is_ahead(row):
    row.join("other")
    row.join("debtor")
    row.band.fairness.charge("debtor", 100.0)
    assert row.band.ahead("new", LANE) == 10.0


def test_in_several_lanes_a_request_more_of_each_flow_may_be_counted(row):
    for number in range(6):
        row.join("noisy", lane=(LANE, OTHER)[number % 2])
    assert 10.0 <= row.band.ahead("new", LANE) <= 20.0 + 1e-3
    assert row.band.ahead("new", None) >= row.band.ahead("new", LANE)


def test_among_many_backlogs_a_quiet_flow_is_told_a_bound(row):
    for number in range(100 * 6 * MANY):
        row.join(f"f{number % (6 * MANY)}")
    one_each = 6 * MANY * 10.0
    assert one_each <= row.band.ahead("quiet", LANE) <= 2 * one_each
    assert row.band.ahead("f0", LANE) >= 0.99 * row.band.cost


def test_the_first_head_is_that_of_the_flow_with_the_least_service(row):
    one = row.join("a")
    other = row.join("b", lane=OTHER)
    lanes = row.band.lanes
    assert row.band.head(set()) is one
    row.band.fairness.charge("a", 5.0)
    assert row.band.head(set()) is other
    assert row.band.head({lanes[OTHER]}) is one
    assert row.band.head(set(lanes.values())) is None


def test_a_lane_whose_flows_are_all_set_aside_has_no_head(row):
    row.join("a")
    other = row.join("b", lane=OTHER)
    row.band.lanes[LANE].set_aside("a", throttled=True)
    assert row.band.head(set()) is other
    row.band.lanes[OTHER].set_aside("b", throttled=True)
    assert row.band.head(set()) is None
    assert row.band.aside() == {"a": 10.0, "b": 10.0}


@pytest.mark.parametrize("many", [1, 3 * MANY])
def test_what_is_set_aside_is_not_ahead_of_others(row, many):
    row.band.fairness.charge("new", 1000.0)
    for number in range(many):
        row.join(f"f{number}")
    told = row.band.ahead("new", LANE)
    for _ in range(50):
        row.join("held")
    row.band.lanes[LANE].set_aside("held", throttled=True)
    assert row.band.ahead("new", LANE) == told == 10.0 * many
    assert row.band.ahead("held", LANE) >= 500.0


def test_a_new_flow_starts_beside_those_that_go_and_not_beside_one_set_aside(row):
    row.join("held")
    row.join("other")
    row.band.fairness.charge("other", 1000.0)
    row.band.lanes[LANE].set_aside("held", throttled=True)
    new = row.join("new")
    assert row.band.fairness.active["new"].counter >= 1000.0
    row.band.lanes[LANE].set_aside("other", throttled=True)
    assert row.band.head(set()) is new


def test_new_lanes_keep_what_flows_were_given(row):
    for number in range(4):
        row.join("a" if number % 2 else "b", lane=(LANE, OTHER)[number % 2])
    row.band.fairness.charge("b", 50.0)
    row.band.relane(lambda _: LANE)
    (lane,) = row.band.lanes.values()
    assert [request.arrival.request for request in (lane.head(), *lane.after_head(9))] == [2, 4, 1, 3]
    assert (row.band.depth, row.band.cost) == (4, 40.0)


def test_a_refund_counts_in_every_lane(row):
    for flow in ("a", "b"):
        for lane in (LANE, OTHER):
            row.join(flow, lane=lane)
    assert [lane.head().arrival.flow for lane in row.band.lanes.values()] == ["a", "a"]
    row.band.settle("b", -5.0)
    assert [lane.head().arrival.flow for lane in row.band.lanes.values()] == ["b", "b"]
