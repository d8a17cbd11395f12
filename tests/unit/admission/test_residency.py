from dataclasses import replace

import pytest

from gateway.admission.events import EndpointId, ResidencyPhase
from gateway.admission.residency import (
    BUSY_STAY,
    IDLE_STAY,
    LEAST_STAY,
    LINGER,
    Engine,
    Retire,
    Start,
    decide,
    ready_at,
)

NOW = 1000.0
A, B, C = (Engine(EndpointId(name), ResidencyPhase.STOPPED, 0.0, "card", takes=10.0, idle_stop=60.0) for name in "abc")


def up(engine, since, **more):
    return replace(engine, phase=ResidencyPhase.UP, since=since, **more)


def waiting(engine, since=NOW - 1, **more):
    return replace(engine, waits_since=since, **more)


def starting(engine, since, **more):
    return replace(engine, phase=ResidencyPhase.STARTING, since=since, **more)


def test_an_engine_starts_with_its_first_request():
    assert decide([A, B], NOW) == []
    assert decide([A, waiting(B)], NOW) == [Start(B.id)]


def test_of_several_the_one_that_left_longest_ago_goes_first_and_then_the_oldest_request():
    assert decide([waiting(A, left_at=900), waiting(B, left_at=800)], NOW) == [Start(B.id)]
    assert decide([waiting(A, 998), waiting(B, 997)], NOW) == [Start(B.id)]


@pytest.mark.parametrize("phase", [ResidencyPhase.STARTING, ResidencyPhase.LEAVING])
def test_nothing_starts_before_the_cards_are_free(phase):
    assert decide([waiting(A, phase=phase), waiting(B)], NOW) == []
    elsewhere = waiting(B, group="other")
    assert decide([waiting(A, phase=phase), elsewhere], NOW) == [Start(B.id)]


@pytest.mark.parametrize(
    ("holder", "stay"),
    [
        ({"busy": True}, 10.0 * BUSY_STAY),
        ({"waits_since": NOW}, 10.0 * BUSY_STAY),
        ({"worked_at": NOW - LINGER / 2}, 10.0 * BUSY_STAY),
        ({"worked_at": NOW - LINGER}, 10.0 * IDLE_STAY),
        ({"takes": None, "busy": True}, LEAST_STAY),
    ],
)
def test_an_engine_that_others_wait_for_stays_by_its_work_and_the_time_its_start_took(holder, stay):
    assert decide([up(A, NOW - stay + 0.1, **holder), waiting(B)], NOW) == []
    assert decide([up(A, NOW - stay, **holder), waiting(B)], NOW) == [Retire(A.id)]
    assert decide([up(A, NOW - 10 * stay, **{"waits_since": NOW, **holder}), B], NOW) == []


def test_an_idle_engine_goes_after_its_time_if_it_has_one():
    assert decide([up(A, 0.0, worked_at=NOW - 59)], NOW) == []
    assert decide([up(A, 0.0, worked_at=NOW - 60)], NOW) == [Retire(A.id)]
    assert decide([up(A, 0.0, worked_at=NOW - 60, busy=True)], NOW) == []
    assert decide([up(A, 0.0, worked_at=NOW - 60, idle_stop=None)], NOW) == []


def test_of_several_that_ran_before_they_were_a_group_one_stays():
    idle, busy = up(A, NOW - 100.0), up(B, NOW - 10.0, busy=True)
    assert decide([busy, idle], NOW) == [Retire(A.id)]
    assert decide([busy, replace(idle, phase=ResidencyPhase.LEAVING)], NOW + 100) == []
    assert decide([busy, replace(idle, phase=ResidencyPhase.LEAVING), waiting(C)], NOW + 100) == [Retire(B.id)]


def test_a_start_that_nobody_waits_for_any_more_gives_way():
    assert decide([starting(A, 990.0), B], NOW) == []
    assert decide([starting(A, 990.0), waiting(B)], NOW) == [Retire(A.id)]


def test_an_engine_that_failed_rests():
    failed = waiting(A, not_before=NOW + 1)
    assert decide([failed], NOW) == []
    assert decide([failed, waiting(B)], NOW) == [Start(B.id)]
    assert decide([failed], NOW + 1) == [Start(A.id)]


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([A], {"a": NOW + 10}),
        ([replace(A, takes=None)], {"a": None}),
        ([starting(A, NOW - 4), B], {"a": NOW + 6, "b": NOW + 6 + 2.5 + 10}),
        ([starting(waiting(A), NOW - 14)], {"a": NOW - 4}),
        ([up(A, NOW - 4, busy=True), waiting(B)], {"b": NOW + 36 + 10}),
        ([up(A, NOW - 400, busy=True), waiting(B)], {"b": NOW + 10}),
        ([replace(A, phase=ResidencyPhase.LEAVING), waiting(B)], {"a": NOW + 60, "b": NOW + 10}),
        ([waiting(A, 998), waiting(B, 999), C], {"a": NOW + 10, "b": NOW + 60, "c": NOW + 110}),
        ([waiting(A, 998, takes=None), waiting(B, 999)], {"a": None, "b": None}),
        ([waiting(A, not_before=NOW + 5)], {"a": NOW + 15}),
    ],
)
def test_when_each_would_be_up(engines, expected):
    assert ready_at(engines, NOW) == expected
