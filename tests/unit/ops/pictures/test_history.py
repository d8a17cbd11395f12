import gc

import pytest

from gateway.ops.pictures.digest import MOST_SERVED, Digest, Ended, OfModel
from gateway.ops.pictures.history import INTERVAL, History
from gateway.ops.pictures.picture import MOST_REQUESTS, RECENT, SPAN, Gauge, Request, Sign

GAUGE = Gauge(0.5, 0.7, 3, True, None, None, 0)


@pytest.fixture
def history():
    return History()


def ended(number, ago=0.0):
    return Ended(number, "r", "m", "a", "completed", None, 1, 1, 1.0, 0.0, None, ago)


def test_a_point_has_rates_since_the_one_before(history):
    history.add(100.0, {"m": 2}, [("a", GAUGE, (1000, 50, 1))])
    history.add(102.0, {"m": 0}, [("a", GAUGE, (1400, 60, 4)), ("b", GAUGE, (5, 5, 5))])
    history.add(104.0, {"m": 0}, [("a", GAUGE, (0, None, 0)), ("b", GAUGE, (5, 5, 5))])
    first, second, third = history.after(0.0)
    assert (first.endpoints["a"].generated, first.waiting) == (None, {"m": 2})
    assert second.endpoints["a"].generated == 200.0
    assert (second.endpoints["a"].prompt, second.endpoints["a"].preempted) == (5.0, 3)
    assert second.endpoints["b"].generated is None, "it is new: what it did before is no rate"
    assert (third.endpoints["a"].generated, third.endpoints["a"].prompt) == (0.0, None), "a counter may begin anew"
    assert history.after(102.0) == (third,)
    assert history.preempted() == {"a": 3, "b": 0}


def test_it_keeps_15_minutes_of_points_and_5_of_sums(history):
    for second in range(0, int(SPAN) + 100, int(INTERVAL)):
        history.take(Digest({"m": OfModel({"completed": 1})}), float(second))
        history.add(float(second), {}, [])
    assert len(history.after(0.0)) == SPAN / INTERVAL
    assert history.recent()["m"].outcomes == {"completed": RECENT / INTERVAL}


def test_what_ended_since_the_last_point_counts_at_once(history):
    history.take(Digest({"m": OfModel({"queue_full": 2})}, [ended(1, ago=0.5)]), 10.0)
    assert history.recent()["m"].outcomes == {"queue_full": 2}
    assert [(one.ends, one.key) for one in history.ended()] == [(9.5, "1")]
    history.add(12.0, {}, [])
    assert history.last.outcomes == {"queue_full": 2}
    assert history.recent()["m"].outcomes == {"queue_full": 2}, "and once only"


def test_many_fronts_and_flows_make_it_no_larger(history):
    for front in range(8):
        served = {f"{front}.{number}": float(number + 1) for number in range(MOST_SERVED)}
        history.take(Digest({"m": OfModel(served={"alice": 1000.0, **served})}), 1.0)
    history.add(2.0, {}, [])
    told = history.recent()["m"].served
    assert len(told) == MOST_SERVED
    assert told["alice"] == 8000.0
    assert "7.99" in told, "those that were served the most"


def test_a_sign_is_as_old_as_it_was_seen_without_a_break(history):
    late, down = Sign(key="late", level="warn", text="t"), Sign(key="down", level="bad", text="t", since=3.0)

    def since(*signs, at, keep=True):
        return [sign.since for sign in history.dated(signs, at, keep=keep)]

    assert since(late, down, at=10.0) == [10.0, 3.0]
    assert since(late, at=12.0) == [10.0]
    assert since(late, at=13.0, keep=False) == [10.0]
    assert since(at=14.0) == []
    assert since(late, at=16.0) == [16.0]


def test_the_sums_of_5_minutes_are_not_taken_anew_for_each_picture(history, monkeypatch):
    for second in range(0, int(RECENT), int(INTERVAL)):
        history.take(Digest({"m": OfModel({"completed": 1}, served={"a": 3.0})}), float(second))
        history.add(float(second), {}, [])
    added = []
    add = OfModel.add
    monkeypatch.setattr(OfModel, "add", lambda one, other: (added.append(other), add(one, other)))
    assert history.recent()["m"].served == {"a": 3.0 * RECENT / INTERVAL}
    assert len(added) <= 1, "8 models with 100 flows each took 14 ms of the event loop, twice a second"


def test_what_is_told_is_the_readers_own(history):
    history.take(Digest({"m": OfModel({"completed": 1})}), 1.0)
    history.add(2.0, {}, [])
    history.recent()["m"].outcomes["completed"] = 99
    assert history.recent()["m"].outcomes == {"completed": 1}


def test_a_model_of_which_nothing_ended_for_5_minutes_is_forgotten(history):
    history.take(Digest({"old": OfModel({"completed": 1}, {2: 1}, {3: 1}, {"a": 7.0})}), 1.0)
    history.add(2.0, {}, [])
    history.add(2.0 + RECENT, {}, [])
    assert history.recent() == {}


def test_of_all_that_ended_only_the_latest_requests_are_kept(history):
    for second in range(10):
        history.take(Digest({}, [ended(second * 1000 + number) for number in range(MOST_REQUESTS)]), float(second))
        history.add(float(second), {}, [])
    assert len(list(_held(history))) == MOST_REQUESTS, "each takes half a kilobyte, and any client makes them"


def _held(root):
    """All that ended and is reachable from here."""
    seen, left = set(), [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, Ended | Request):
            yield one
        elif type(one).__module__ in {"builtins", "collections"} or type(one).__module__.startswith("gateway.ops"):
            left += gc.get_referents(one)
