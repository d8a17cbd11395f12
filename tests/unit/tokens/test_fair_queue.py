import pytest

from gateway.tokens.fair_queue import MOST_FLOWS, FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def test_one_flow_leaves_in_the_order_it_came() -> None:
    queue: FairQueue[str] = FairQueue()
    for cost, item in enumerate("dcba"):
        queue.push("flow", 10 - cost, item)
    assert drained(queue) == ["d", "c", "b", "a"]


def test_a_flow_with_a_long_backlog_does_not_delay_a_newcomer() -> None:
    queue: FairQueue[str] = FairQueue()
    for index in range(100):
        queue.push("busy", 1000, f"busy {index}")
    queue.push("new", 1000, "new")
    assert "new" in drained(queue)[:2]


def test_flows_share_by_cost_not_by_count() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(20):
        queue.push("large", 10, "large")
    for _ in range(200):
        queue.push("small", 1, "small")
    first = [queue.pop() for _ in range(55)]
    assert first.count("large") == 5


def test_a_flow_does_not_save_up_credit_while_it_is_away() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(50):
        queue.push("busy", 1, "busy")
    for _ in range(40):
        queue.pop()
    for _ in range(10):
        queue.push("late", 1, "late")
    assert drained(queue)[:10].count("late") == 5


def test_a_flow_whose_items_cost_more_than_was_said_has_its_next_turn_later() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("dear", 1, "dear")
    assert queue.pop() == "dear"
    queue.charge("dear", 10)
    for flow in ("dear", "cheap", "cheap", "cheap"):
        queue.push(flow, 3, flow)
    assert drained(queue) == ["cheap", "cheap", "cheap", "dear"]


def test_an_empty_queue_has_nothing_to_give() -> None:
    with pytest.raises(IndexError):
        FairQueue().pop()


def test_in_a_queue_that_is_never_empty_only_the_latest_flows_are_remembered() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("first", 1, "first")
    for index in range(3 * MOST_FLOWS):
        queue.push(index, 1, "later")
        queue.pop()
    assert len(queue._ends) == MOST_FLOWS
    queue.push(index, 1, "again")
    queue.push("new", 1, "new")
    assert queue.pop() == "later"
    assert drained(queue) == ["new", "again"], "the last flow has had its turn"
