import pytest

from gateway.admission.queueing.band import MANY, BandQueue
from tests.fakes.waiting import Waiting

LANE = (1, None)
OTHER = (2, None)


class Row:
    """A band, and who waits in it."""

    def __init__(self):
        self.band = BandQueue(0, 0.0, {})
        self.turns = 0

    def join(self, flow, cost=10.0, lane=LANE):
        self.turns += 1
        request = Waiting(self.turns, flow=flow, cost=cost)
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


def test_the_first_lane_is_that_of_the_flow_with_the_least_service(row):
    row.join("a")
    row.join("b", lane=OTHER)
    one, other = row.band.lanes.values()
    assert row.band.first(set()) is one
    row.band.fairness.charge("a", 5.0)
    assert row.band.first(set()) is other
    assert row.band.first({other}) is one
    assert row.band.first({one, other}) is None


def test_new_lanes_keep_what_flows_were_given(row):
    for number in range(4):
        row.join("a" if number % 2 else "b", lane=(LANE, OTHER)[number % 2])
    row.band.fairness.charge("b", 50.0)
    row.band.relane(lambda _: LANE)
    (lane,) = row.band.lanes.values()
    assert [request.name for request in (lane.head(), *lane.behind(9))] == [2, 4, 1, 3]
    assert (row.band.depth, row.band.cost) == (4, 40.0)


def test_a_refund_counts_in_every_lane(row):
    for flow in ("a", "b"):
        for lane in (LANE, OTHER):
            row.join(flow, lane=lane)
    assert [lane.head().arrival.flow for lane in row.band.lanes.values()] == ["a", "a"]
    row.band.settle("b", -5.0)
    assert [lane.head().arrival.flow for lane in row.band.lanes.values()] == ["b", "b"]
