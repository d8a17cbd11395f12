from math import inf

import pytest

from gateway.admission.queueing.flow_fairness import Flow
from gateway.admission.queueing.lane import Lane
from tests.fakes.waiting import waiting


class Row:
    """A lane, and the flows in it."""

    def __init__(self):
        self.lane = Lane()
        self.flows = {}
        self.turns = 0

    def join(self, flow, cost=10.0, turn=None):
        self.turns += 1
        request = waiting(self.turns, flow=flow, cost=cost)
        request.order = request.ticket = turn or self.turns
        self.lane.push(request, self.flows.setdefault(flow, Flow(flow, 1.0, 0.0)))
        return request

    def after_head(self, count):
        return [request.arrival.request for request in self.lane.after_head(count)]


@pytest.fixture
def row():
    return Row()


def test_the_least_counter_goes_first_then_who_came_first(row):
    first = row.join("a")
    second = row.join("b")
    assert row.lane.head() is first
    row.flows["a"].counter = 5.0
    assert row.lane.head() is second
    row.flows["b"].counter = 5.0
    assert row.lane.head() is first
    assert row.lane.rank() == (5.0, 1)


def test_a_flow_moves_forward_when_it_is_refunded(row):
    row.join("a")
    second = row.join("b")
    row.flows["b"].counter = 5.0
    row.flows["a"].counter = 5.0
    row.lane.head()
    row.flows["b"].counter = 4.0
    row.lane.refunded(row.flows["b"])
    row.lane.refunded(Flow("unknown", 1.0, 0.0))
    assert row.lane.head() is second


def test_who_has_an_earlier_turn_becomes_the_head(row):
    row.join("a", turn=5)
    early = row.join("a", turn=2)
    assert row.lane.head() is early
    assert [request.order for request in row.lane.of_flow("a")] == [2, 5]


def test_the_oldest_of_a_flow_is_told_by_arrival_and_its_last_by_turn(row):
    first, back = row.join("a", turn=5), row.join("a", turn=2)
    first.arrived_at, back.arrived_at = 10.0, 100.0
    assert row.lane.ends("a") == (10.0, first)
    assert row.lane.ends("b") is None


def test_a_lane_is_over_when_nobody_waits(row):
    request = row.join("a")
    assert row.lane
    row.lane.remove(request)
    assert not row.lane
    assert not list(row.lane)
    assert not list(row.lane.of_flow("a"))


def test_behind_the_head_they_stand_as_if_each_was_taken(row):
    for flow, cost in [("a", 10.0), ("a", 10.0), ("a", 10.0), ("b", 4.0), ("b", 4.0), ("b", 4.0), ("c", 25.0)]:
        row.join(flow, cost)
    assert row.after_head(4) == [4, 7, 5, 6]
    assert row.lane.window_end == 8.0
    assert row.after_head(99) == [4, 7, 5, 6, 2, 3]
    assert row.lane.window_end == inf
    assert row.lane.head().arrival.request == 1, "looking changes nothing"


def test_a_line_set_aside_is_left_out_until_it_is_restored(row):
    for flow in "abab":
        row.join(flow)
    row.lane.set_aside("a", throttled=True)
    assert [row.lane.head().arrival.request, *row.after_head(9)] == [2, 4]
    row.join("c")
    assert [row.lane.head().arrival.request, *row.after_head(9)] == [2, 5, 4]
    for flow in "bc":
        row.lane.set_aside(flow, throttled=True)
    assert row.lane.head() is row.lane.rank() is None
    assert {name: queue.cost for name, queue in row.lane.aside.items()} == {"a": 20.0, "b": 20.0, "c": 10.0}
    row.lane.blocked = row.join("c")
    row.lane.restore(3)
    assert row.lane.blocked is None
    assert [row.lane.head().arrival.request, *row.after_head(9)] == [1, 2, 5, 3, 4, 6]


def test_a_refund_does_not_bring_back_a_line_set_aside(row):
    row.join("a")
    second = row.join("b")
    row.lane.set_aside("a", throttled=True)
    row.lane.refunded(row.flows["a"])
    assert row.lane.head() is second


def test_behind_the_head_of_one_flow(row):
    for _ in range(5):
        row.join("a")
    assert row.after_head(2) == [2, 3]
    assert row.lane.window_end == 20.0
    assert row.after_head(4) == [2, 3, 4, 5]
    assert row.after_head(9) == [2, 3, 4, 5]
    assert row.lane.window_end == inf
