from dataclasses import replace

import pytest

from gateway.admission.events import Arrived, Back, Declared, Demand, EndpointId, RequestId
from gateway.tier import carried
from gateway.tier.carried import PART, Carried, Declaration
from gateway.tier.frames import Declares, Watched, weight

HERE = EndpointId("here")
NOW = 20.0


def request(number, *, on=None, prompts=1, came_at=5.0):
    made = Carried("m", Arrived(RequestId(number), Demand((10,) * prompts, 10)), came_at)
    made.endpoint = on
    return made


def declaration(*requests, watched=()):
    there = {r: Watched(HERE, r, 10, streams=True, evacuated=False, started=False) for r in watched}
    held = {known.arrival.request: known for known in requests}
    return held, there, Declaration(held, [there], lambda number: 7, lambda: NOW, 10.0)


def test_it_says_how_long_ago_each_came_and_what_failed_on_it():
    flies, waits = request(1, on=HERE), request(2, came_at=19.0)
    waits.failures, waits.avoid = 1, HERE
    _, there, all_of_it = declaration(waits, flies, watched=[1])
    part = all_of_it.part()
    assert part.flights == [("m", Declared(flies.as_of(NOW, 10.0), HERE, 7))]
    assert part.flights[0][1].arrival.waited == 15.0
    ((_, arrival),) = part.waiting
    assert (arrival.waited, arrival.failures, arrival.avoid) == (1.0, 1, HERE)
    assert part.watched == [there[1]]
    assert part.last


def test_what_failed_on_it_in_another_model_still_counts():
    came = replace(request(1).arrival, failures=1)
    assert Carried("m", came, NOW).as_of(NOW, NOW).failures == 1


def test_it_says_what_no_owner_can_have_charged():
    _, _, all_of_it = declaration(request(1, came_at=10.0), request(2, came_at=10.1))
    assert [arrival.charged for _, arrival in all_of_it.part().waiting] == [True, False]


def test_whose_client_is_behind_is_told_until_it_comes_back():
    flies = request(1, on=HERE)
    flies.behind = True
    _, _, all_of_it = declaration(flies)
    ((_, declared),) = all_of_it.part().flights
    assert declared.behind
    flies.come_back(Back.BUSY, NOW)
    assert not flies.behind


def test_what_flies_comes_first(monkeypatch):
    monkeypatch.setattr(carried, "PART", 1)
    _, _, all_of_it = declaration(request(1), request(2, on=HERE), request(3), watched=[2])
    parts = [all_of_it.part() for _ in range(5)]
    assert [[len(part.flights), len(part.waiting), len(part.watched)] for part in parts] == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],
    ]
    assert [part.last for part in parts] == [False] * 4 + [True]


def test_a_part_is_bounded_by_what_it_costs():
    many = [request(number) for number in range(100)]
    _, _, all_of_it = declaration(*many)
    assert len(all_of_it.part().waiting) == -(-PART // weight(many[0].arrival))
    _, _, all_of_it = declaration(*[request(number, prompts=16_384) for number in range(3)])
    assert len(all_of_it.part().waiting) == 1


def test_it_knows_what_has_yet_to_be_told(monkeypatch):
    monkeypatch.setattr(carried, "PART", 1)
    held, _, all_of_it = declaration(request(1), request(2), request(3))
    all_of_it.part()
    assert [number in all_of_it for number in (1, 2, 3, 4)] == [False, True, True, False]
    del held[RequestId(2)]
    assert [arrival.request for _, arrival in all_of_it.part().waiting] == [3]
    assert all_of_it.part() == Declares([], [], [], last=True)


@pytest.mark.parametrize("watched", [[], [1]])
def test_what_is_watched_no_more_is_not_told(watched):
    _, there, all_of_it = declaration(request(1, on=HERE), watched=watched)
    there.clear()
    assert all_of_it.part().watched == []
