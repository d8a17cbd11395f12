from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.program_lifecycle import (
    TRANSITIONS,
    BecameReady,
    Command,
    Event,
    Exited,
    Kill,
    Launch,
    Lifecycle,
    Policy,
    Start,
    State,
    Stop,
    Terminate,
    Tick,
    Trigger,
    WakeAt,
)

POLICY = Policy(start_timeout=100, stop_timeout=10, max_restarts=2, backoff=1, max_backoff=8, steady_after=60)


class Play:
    """A life told event by event: `at(time, event)` then what it must command, then the state it must be in."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.lifecycle = Lifecycle(policy)
        self.commands: list[Command] = []

    def at(self, now: float, event: Event, *commands: Command) -> Self:
        assert self.lifecycle.handle(event, now) == list(commands)
        return self

    def then(self, state: State) -> Self:
        assert self.lifecycle.state is state
        return self


def test_an_ordinary_life() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .then(State.STARTING)
        .at(30, BecameReady())
        .then(State.READY)
        .at(500, Stop(), Terminate(), WakeAt(510))
        .then(State.DRAINING)
        .at(503, Exited())
        .then(State.STOPPED)
    )


def test_a_crash_is_followed_by_a_start_after_a_growing_wait() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(5, Exited(), WakeAt(6))
        .then(State.BACKOFF)
        .at(5.5, Tick())
        .then(State.BACKOFF)
        .at(6, Tick(), Launch(), WakeAt(106))
        .at(10, Exited(), WakeAt(12))
        .at(12, Tick(), Launch(), WakeAt(112))
        .at(20, Exited())
        .then(State.FAILED)
        .at(30, Tick())
        .at(31, Start())
        .then(State.FAILED)
    )


def test_running_steadily_forgives_what_was_before() -> None:
    play = Play().at(0, Start(), Launch(), WakeAt(100))
    for crash in range(10):
        now = crash * 1000.0
        play.at(now + 1, BecameReady()).at(now + 61, Exited(), WakeAt(now + 62))
        play.at(now + 62, Tick(), Launch(), WakeAt(now + 162))
    assert play.lifecycle.failures == 1


def test_becoming_ready_for_a_moment_forgives_nothing() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(1, BecameReady())
        .at(2, Exited(), WakeAt(3))
        .at(3, Tick(), Launch(), WakeAt(103))
        .at(4, BecameReady())
        .at(5, Exited(), WakeAt(7))
        .at(7, Tick(), Launch(), WakeAt(107))
        .at(8, BecameReady())
        .at(9, Exited())
        .then(State.FAILED)
    )


def test_a_hopeless_first_start_is_not_tried_again() -> None:
    Play().at(0, Start(), Launch(), WakeAt(100)).at(8, Exited(permanent=True)).then(State.FAILED)


def test_what_has_run_before_is_tried_again_whatever_it_said() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(1, BecameReady())
        .at(2, Exited(permanent=True), WakeAt(3))
        .then(State.BACKOFF)
    )


def test_a_start_that_is_tried_with_less_follows_at_once_and_is_no_failure_in_a_row() -> None:
    play = (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(8, Exited(permanent=True, refitted=True), Launch(), WakeAt(108))
        .then(State.STARTING)
    )
    assert play.lifecycle.failures == 0
    play.at(9, Stop(), Kill(overdue=False)).at(10, Exited(refitted=True)).then(State.STOPPED)


def test_what_is_stopped_before_it_was_ready_is_killed_as_it_has_nothing_to_end() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(9, Stop(), Kill(overdue=False))
        .then(State.DRAINING)
        .at(100, Tick())
        .at(101, Exited())
        .then(State.STOPPED)
    )


def test_what_became_ready_the_moment_before_it_ended_has_crashed() -> None:
    play = Play().at(0, Start(), Launch(), WakeAt(100)).at(8, BecameReady())
    play.at(8, Exited(permanent=True, refitted=True), WakeAt(9)).then(State.BACKOFF)


def test_a_start_that_takes_too_long_is_killed_and_counts_as_a_failure() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(100, Tick(), Kill())
        .then(State.STARTING)
        .at(101, Exited(), WakeAt(102))
        .then(State.BACKOFF)
    )


def test_a_stop_that_takes_too_long_ends_in_a_kill() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(1, BecameReady())
        .at(2, Stop(), Terminate(), WakeAt(12))
        .at(3, Stop())
        .at(12, Tick(), Kill())
        .at(12.1, Exited())
        .then(State.STOPPED)
    )


def test_a_stop_while_waiting_to_start_again_ends_at_once() -> None:
    (
        Play()
        .at(0, Start(), Launch(), WakeAt(100))
        .at(1, Exited(), WakeAt(2))
        .at(1.5, Stop())
        .then(State.STOPPED)
        .at(2, Tick())
        .then(State.STOPPED)
    )


def test_the_wait_is_bounded() -> None:
    lifecycle = Lifecycle(Policy(max_restarts=2000, backoff=1, max_backoff=8))
    lifecycle.handle(Start(), 0)
    waits = []
    for _ in range(1100):
        lifecycle.handle(Exited(), 0)
        waits.append(lifecycle.delay())
        lifecycle.handle(Tick(), 1e9)
    assert waits == [1, 2, 4, *[8] * 1097]


def test_every_state_that_is_left_can_be_reached() -> None:
    reached = {State.STOPPED, *TRANSITIONS.values()}
    assert reached == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.FAILED}
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


EVENTS = st.sampled_from(
    [Start(), Stop(), BecameReady(), Exited(), Exited(permanent=True), Exited(refitted=True), Tick()]
)


@given(st.lists(st.tuples(st.floats(0, 200), EVENTS), max_size=60))
def test_no_process_is_started_beside_another(steps: list[tuple[float, Event]]) -> None:
    """Whatever happens in whatever order: at most one process, none in an ended state, none after a stop."""
    lifecycle, now, alive, stopped = Lifecycle(POLICY), 0.0, False, False
    for pause, event in steps:
        if isinstance(event, Exited | BecameReady) and not alive:
            continue  # only a process that runs can do these
        now += pause
        alive = alive and not isinstance(event, Exited)
        stopped = stopped or (isinstance(event, Stop) and lifecycle.state is not State.STOPPED)
        for command in lifecycle.handle(event, now):
            if isinstance(command, Launch):
                assert not alive
                alive = True
            elif isinstance(command, Terminate | Kill):
                assert alive
        if stopped and lifecycle.state is State.STOPPED:
            break
        assert alive == (lifecycle.state in {State.STARTING, State.READY, State.DRAINING})


@pytest.mark.parametrize("event", [BecameReady(), Exited(), Tick(), Stop()])
def test_what_has_not_started_takes_no_notice(event: Event) -> None:
    Play().at(0, event).then(State.STOPPED)
