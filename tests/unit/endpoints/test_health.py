import itertools

import pytest

from gateway.endpoints.health import (
    FORGET_BREAKS,
    MAX_REST,
    REST,
    SERVING,
    TRANSITIONS,
    Aborted,
    Answered,
    Drain,
    Effect,
    Health,
    Missed,
    Progressed,
    Signal,
    Stalled,
    State,
    Undrain,
)

IN, OUT = [Effect.TAKE_IN], [Effect.TAKE_OUT]
REFUSED = Missed("connection refused", certain=True)
SILENT = Missed("no answer within 5 s", certain=False)
STALLED = Stalled("no progress for 31 s")

WAYS = {
    State.STARTING: [],
    State.UP: [Answered()],
    State.TRIAL: [Answered(), STALLED, ("rest", REST), Answered()],
    State.DOWN: [Answered(), REFUSED],
    State.HUNG: [Answered(), STALLED],
    State.REFUSING: [Answered(), Aborted()],
    State.ASLEEP: [Answered(asleep=True)],
    State.DRAINING: [Drain()],
}
"""How each state is reached from a new endpoint."""


class Play:
    """A health with a clock of its own; each event comes a second after the one before."""

    def __init__(self, *events, failures=3):
        self.now = 100.0
        self.health = Health(self.now, failures)
        for event in events:
            self(event)

    def __call__(self, event):
        if isinstance(event, tuple):
            self.now += event[1]
            return None
        self.now += 1
        return self.health.handle(event, self.now)

    @property
    def state(self):
        return self.health.state


def reach(state):
    play = Play(*WAYS[state])
    assert play.state is state
    return play


SIGNALS = {
    Signal.ALIVE: Answered(),
    Signal.SLEEPS: Answered(asleep=True),
    Signal.MISSED: SILENT,
    Signal.GONE: REFUSED,
    Signal.STALLED: STALLED,
    Signal.PROGRESS: Progressed(),
    Signal.ABORTS: Aborted(),
    Signal.DRAIN: Drain(),
    Signal.UNDRAIN: Undrain(),
}


@pytest.mark.parametrize(("state", "signal"), list(itertools.product(State, SIGNALS)), ids=lambda item: item.name)
def test_every_event_in_every_state_leads_where_the_table_says(state, signal):
    play = reach(state)
    expected = TRANSITIONS.get((state, signal), state)
    effects = play(SIGNALS[signal])
    assert play.state is expected
    if expected in SERVING and expected is not state:
        assert effects == IN
    elif state in SERVING and expected not in SERVING:
        assert effects == OUT
    else:
        assert effects == []


@pytest.mark.parametrize("state", [state for state in State if state is not State.DRAINING])
def test_the_operator_may_drain_in_any_state_and_only_the_operator_undrains(state):
    play = reach(state)
    play(Drain())
    for event in (Answered(), REFUSED, STALLED, Progressed(), Aborted(), Answered(asleep=True)):
        assert play(event) == []
        assert play.state is State.DRAINING
    play(Undrain())
    assert play(Answered()) == IN


def test_an_endpoint_that_was_never_reached_takes_no_traffic_and_says_why():
    play = Play(REFUSED)
    assert (play.state, play.health.reason, play.health.was_healthy) == (
        State.STARTING,
        "connection refused",
        False,
    )


def test_doubtful_misses_take_out_only_in_a_row():
    play = reach(State.UP)
    assert [play(event) for event in (SILENT, SILENT, Answered(), SILENT, SILENT)] == [[]] * 5
    assert play(SILENT) == OUT
    assert play.health.reason == "no answer within 5 s"


def test_a_refused_connection_takes_out_at_once_and_one_answer_brings_back():
    play = reach(State.UP)
    assert play(REFUSED) == OUT
    assert play(Answered()) == IN
    assert play.state is State.UP


def test_the_reason_follows_the_last_probe_while_it_is_down():
    play = reach(State.DOWN)
    since = play.health.since
    play(Missed("GET /health answered 502", certain=False))
    assert play.health.reason == "GET /health answered 502"
    assert play.health.since == since


def test_answered_probes_do_not_bring_a_hung_engine_back_while_its_requests_wait():
    play = reach(State.HUNG)
    for _ in range(100):
        assert play(Answered(idle=False)) == []
    assert play.state is State.HUNG
    assert play(Progressed()) == IN
    assert play.state is State.UP


def test_a_hung_engine_without_requests_rests_and_is_then_tried():
    play = reach(State.HUNG)
    play(("rest", REST - 2))
    assert play(Answered()) == []
    assert play(Answered()) == IN
    assert play.state is State.TRIAL
    assert play(Progressed()) == IN
    assert play.state is State.UP


def test_each_failed_trial_doubles_the_rest_up_to_a_bound():
    play, rests = reach(State.HUNG), []
    for _ in range(6):
        rests.append(next(second for second in range(1, 100) if play(Answered()) == IN))
        play(STALLED)
    assert rests == [5, 10, 20, 40, MAX_REST, MAX_REST]


def test_breaks_of_long_ago_are_forgotten():
    play = reach(State.HUNG)
    play(Progressed())
    play(("work", FORGET_BREAKS))
    play(STALLED)
    play(("rest", REST))
    assert play(Answered()) == IN


def test_an_engine_that_aborts_is_left_alone_for_a_while_even_with_requests_on_it():
    play = reach(State.REFUSING)
    play(("rest", REST - 2))
    assert play(Answered(idle=False)) == []
    assert play(Progressed()) == []
    assert play(Answered(idle=False)) == IN
    assert play.state is State.UP


def test_a_restarted_engine_is_not_made_to_rest():
    play = reach(State.HUNG)
    play(REFUSED)
    assert play.state is State.DOWN
    play(Answered())
    play(STALLED)
    play(("rest", REST))
    assert play(Answered()) == IN


def test_a_sleeping_engine_comes_back_awake():
    play = reach(State.UP)
    assert play(Answered(asleep=True)) == OUT
    assert play(Answered()) == IN


def test_having_been_healthy_once_stays_known():
    assert not reach(State.STARTING).health.was_healthy
    assert not reach(State.ASLEEP).health.was_healthy
    assert reach(State.DOWN).health.was_healthy
