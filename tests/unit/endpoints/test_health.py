import itertools

import pytest

from gateway.endpoints.health import (
    FORGET_BREAKS,
    LOST,
    MAX_REST,
    REST,
    SERVING,
    TAKEN_OUT,
    TRANSITIONS,
    Aborted,
    Answered,
    Drain,
    Effect,
    Health,
    Missed,
    Progressed,
    Retire,
    Rouse,
    Scales,
    Signal,
    Stalled,
    State,
    Undrain,
)

IN, OUT = [Effect.TAKE_IN], [Effect.TAKE_OUT]
LOSES = [Effect.TAKE_OUT, Effect.EVACUATE]
REFUSED = Missed("connection refused", certain=True)
SILENT = Missed("no answer within 5 s", certain=False)
UNANSWERED = Missed("no answer within 5 s", certain=False, accepted=True)
STALLED = Stalled("no progress for 31 s")
ALONE = Stalled("the only request on it has had no token for 31 s", alone=True)

WAYS = {
    State.STARTING: [],
    State.UP: [Answered()],
    State.TRIAL: [Answered(), STALLED, ("rest", REST), Answered()],
    State.DOWN: [Answered(), REFUSED],
    State.BLOCKED: [Answered(), UNANSWERED, UNANSWERED, UNANSWERED],
    State.SUSPECT: [Answered(), ALONE],
    State.HUNG: [Answered(), STALLED],
    State.REFUSING: [Answered(), Aborted()],
    State.ASLEEP: [Answered(asleep=True)],
    State.SCALING: [Answered(), Scales()],
    State.STOPPED: [Answered(), Retire()],
    State.DRAINING: [Drain()],
}
"""How each state is reached from a new endpoint."""


class Play:
    """A health with a clock of its own; each event comes a second after the one before."""

    def __init__(self, *events, failures=3, launched=False):
        self.now = 100.0
        self.health = Health(self.now, failures)
        self.health.launched = launched
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


def reach(state, **of):
    play = Play(*WAYS[state], **of)
    assert play.state is state
    return play


SIGNALS = {
    Signal.ALIVE: Answered(),
    Signal.SLEEPS: Answered(asleep=True),
    Signal.SCALES: Scales(),
    Signal.MISSED: SILENT,
    Signal.GONE: REFUSED,
    Signal.SILENT: ALONE,
    Signal.STALLED: STALLED,
    Signal.PROGRESS: Progressed(),
    Signal.ABORTS: Aborted(),
    Signal.RETIRE: Retire(),
    Signal.ROUSE: Rouse(),
    Signal.DRAIN: Drain(),
    Signal.UNDRAIN: Undrain(),
}


# One that came to be blocked has missed too many probes for another to be the first.
PAIRS = [pair for pair in itertools.product(State, SIGNALS) if pair != (State.BLOCKED, Signal.MISSED)]


@pytest.mark.parametrize(("state", "signal"), PAIRS, ids=lambda item: item.name)
def test_every_event_in_every_state_leads_where_the_table_says(state, signal):
    play = reach(state)
    expected = TRANSITIONS.get((state, signal), state)
    effects = play(SIGNALS[signal])
    assert play.state is expected
    assert (Effect.TAKE_IN in effects) is (expected in SERVING and expected is not state)
    assert (Effect.TAKE_OUT in effects) is (state in SERVING and expected not in SERVING)
    dies = state in TAKEN_OUT and signal is Signal.GONE
    assert (Effect.EVACUATE in effects) is (dies or (expected in LOST and expected is not state))


@pytest.mark.parametrize("state", State)
def test_probes_that_are_taken_and_not_answered_lead_where_the_table_says(state):
    play = reach(state, launched=True)
    for _ in range(3):
        play(UNANSWERED)
    assert play.state is TRANSITIONS.get((state, Signal.UNANSWERED), state)


def test_of_an_engine_that_another_launches_it_is_not_known_whether_it_was_ever_ready():
    play = reach(State.STARTING)
    for _ in range(9):
        play(UNANSWERED)
    assert play.state is State.STARTING


@pytest.mark.parametrize("then", [[], [STALLED]], ids=["blocked", "hung"])
def test_an_engine_that_ran_before_this_process_is_blocked_or_hangs_and_is_up_only_when_it_answers(then):
    play = Play(*[UNANSWERED] * 3, *then, launched=True)
    assert play.state is (State.HUNG if then else State.BLOCKED)
    assert play(Progressed()) == []
    assert play.state is State.STARTING, "it is not known yet what it serves"
    for _ in range(2):
        play(UNANSWERED)
    assert play.state is State.STARTING, "these begin to count anew"
    assert play(Answered()) == IN


@pytest.mark.parametrize("state", [state for state in State if state is not State.DRAINING])
def test_the_operator_may_drain_in_any_state_and_only_the_operator_undrains(state):
    play = reach(state)
    play(Drain())
    for event in (Answered(), SILENT, STALLED, Progressed(), Aborted(), Answered(asleep=True)):
        assert play(event) == []
        assert play.state is State.DRAINING
    play(Undrain())
    assert play(Answered()) == IN


@pytest.mark.parametrize("state", sorted(TAKEN_OUT))
@pytest.mark.parametrize("alive", [Answered(), Answered(asleep=True), Scales(), Progressed()], ids=repr)
def test_one_that_is_taken_out_stays_so_when_it_dies_and_what_is_on_it_is_lost_once(state, alive):
    play = reach(state)
    assert (play(SILENT), play(SILENT), play.health.lost) == ([], [], False)
    assert (play(SILENT), play.health.lost) == ([Effect.EVACUATE], True)
    assert (play(REFUSED), play(UNANSWERED), play.health.lost) == ([], [], True)
    assert (play(alive), play.health.lost) == ([], False)
    assert play.state is state


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
    assert play(SILENT) == LOSES
    assert play.health.reason == "no answer within 5 s"


def test_a_refused_connection_takes_out_at_once_and_one_answer_brings_back():
    play = reach(State.UP)
    assert play(REFUSED) == LOSES
    assert play(Answered()) == IN
    assert play.state is State.UP


def test_the_reason_follows_the_last_probe_while_it_is_down():
    play = reach(State.DOWN)
    since = play.health.since
    play(Missed("GET /health answered 502", certain=False))
    assert play.health.reason == "GET /health answered 502"
    assert play.health.since == since


def test_tokens_outweigh_probes_that_are_not_answered():
    play = reach(State.UP)
    for _ in range(100):
        assert [play(event) for event in (UNANSWERED, UNANSWERED, Progressed())] == [[]] * 3
    assert play.health.doubted is False
    play(SILENT)
    assert play.health.doubted


def test_one_that_is_blocked_keeps_what_it_has_and_is_back_with_an_answer_or_a_token():
    for sign in (Answered(idle=False), Progressed()):
        play = reach(State.UP)
        assert [play(UNANSWERED) for _ in range(3)] == [[], [], OUT]
        assert play(UNANSWERED) == []
        assert play(sign) == IN
        assert play.state is State.UP


def test_one_that_is_blocked_is_lost_with_a_refused_connection_or_when_its_requests_say_so():
    for event, state in ((REFUSED, State.DOWN), (SILENT, State.DOWN), (STALLED, State.HUNG)):
        play = reach(State.BLOCKED)
        assert play(event) == [Effect.EVACUATE]
        assert play.state is state


def test_a_silent_request_alone_costs_its_endpoint_a_rest_and_a_trial():
    play = reach(State.UP)
    assert play(ALONE) == OUT, "and nothing is sent elsewhere"
    play(("rest", REST - 2))
    assert play(Answered()) == []
    assert play(Answered()) == IN
    assert play.state is State.TRIAL


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


def test_an_engine_comes_back_however_often_it_was_tried_in_vain():
    play = reach(State.REFUSING)
    for _ in range(1100):
        play(("rest", MAX_REST))
        assert play(Answered()) == IN
        play(Aborted())


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
