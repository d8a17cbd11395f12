from types import SimpleNamespace

import pytest
import structlog

from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointDown,
    EndpointId,
    EndpointUp,
    Expected,
    RequestId,
    ResidencyPhase,
)
from gateway.admission.policy import Policy
from gateway.app.engine_demand import LOOK, MISSED, SETTLE, TAKEN_OVER, EngineDemand
from gateway.config.engine import OnDemand
from gateway.endpoints.health import State
from gateway.pools.launcher import EngineNews

A, B = EndpointId("a:1"), EndpointId("b:1")


class Monitor:
    """One that is healthy as soon as its engine may be."""

    def __init__(self):
        self.state = State.STARTING
        self.status = SimpleNamespace(reason="no reason")
        self.in_flight = self.passing = 0
        self.drained = False

    @property
    def serving(self):
        return self.state is State.UP

    def retire(self, reason=None):
        self.state = State.STOPPED
        self.status.reason = reason or self.status.reason

    def rouse(self):
        self.state = State.STARTING if self.state is State.STOPPED else self.state


class World:
    """Two engines in one group, a core for the first one, and a parent that keeps what it is asked."""

    def __init__(self, *, elsewhere=True):
        self.now = 100.0
        self.asked, self.told, self.handled = [], [], []
        self.carried = set()
        self.monitors = {A: Monitor(), B: Monitor()}
        core = AdmissionController(Policy())
        core.handle(EndpointDown(A, "", Capacity(1000, 100)), self.now)
        driver = SimpleNamespace(controller=core, handle=self.handled.append)
        cores = SimpleNamespace(
            name={A: "red", B: "blue"}.get,
            drivers={"red": driver},
            driver_of=lambda endpoint: driver if endpoint == A else None,
        )
        self.seen = []
        parent = SimpleNamespace(
            run=lambda at: self.asked.append(("run", at)),
            end=lambda at: self.asked.append(("end", at)),
            seems=lambda *what: self.seen.append(what),
        )
        follower = SimpleNamespace(starts=lambda *what, failed: self.told.append((*what, failed)))
        how = OnDemand(idle_stop=10.0, place="card")
        self.demand = EngineDemand(
            {A: how, B: how, "c:1": None},
            cores,
            self.monitors,
            follower,
            parent=parent,
            clock=lambda: self.now,
            carries=(lambda endpoint: endpoint in self.carried) if elsewhere else None,
        )

    def pass_time(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK
            self.demand.look()

    def hear(self, endpoint, phase=ResidencyPhase.STOPPED, wrong=None, **more):
        self.demand.heard(EngineNews(endpoint, phase, 2.0, wrong, **more))

    def lose(self, *endpoints):
        for endpoint in endpoints:
            self.demand.lost(endpoint)

    def come_up(self, endpoint):
        self.hear(endpoint, ResidencyPhase.UP)
        self.monitors[endpoint].state = State.UP
        self.pass_time(LOOK)


@pytest.fixture
def world():
    made = World()
    for endpoint in (A, B):
        made.hear(endpoint)
    made.pass_time(LOOK)
    return made


def test_nothing_starts_before_the_parent_has_said_what_runs():
    world = World()
    world.demand.awaited(0, {"red": 1.0})
    world.hear(A)
    world.pass_time(1)
    assert world.asked == []
    world.hear(B)
    world.pass_time(LOOK)
    assert world.asked == [("run", A)]


def test_an_engine_of_a_parent_that_begins_anew_is_tried_at_once_however_often_it_failed_before(world):
    world.demand.awaited(0, {"red": 1.0})
    for _ in range(6):
        world.hear(A, wrong="no room")
    world.asked.clear()
    world.pass_time(LOOK)
    assert world.asked == []
    world.lose(A)
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked == [("run", A)]


def test_a_long_queue_is_not_gone_through_for_a_snapshot(world, monkeypatch):
    core = world.demand._cores.drivers["red"].controller
    for number in range(100):
        core.handle(Arrived(RequestId(number), Demand((100,), 50)), world.now)
    monkeypatch.setattr(AdmissionController, "snapshot", None)  # 20 times a second, with 2,048 waiting 1 ms each
    world.pass_time(LOOK)
    assert world.asked == [("run", A)]
    world.come_up(A)
    core.handle(EndpointUp(A, Capacity(1000, 100)), world.now)
    world.pass_time(30)
    assert world.asked == [("run", A)], "what the core has on it keeps it"


def test_an_engine_that_ran_before_its_owner_is_not_started_again():
    world = World()
    world.hear(B)
    world.come_up(A)
    world.demand.awaited(0, {"red": 1.0})
    world.pass_time(1)
    assert world.asked == []


def test_what_is_on_an_engine_that_ran_before_its_owner_is_not_cut_off():
    world = World()
    world.monitors[A].in_flight = 1
    world.hear(A, ResidencyPhase.UP)
    world.hear(B)
    world.demand.awaited(0, {"blue": 10.0})
    world.pass_time(12)
    assert world.asked == [], "though it was not probed yet"
    world.monitors[A].in_flight = 0
    world.pass_time(LOOK)
    assert world.asked == [("end", A)]


def test_what_a_late_front_has_on_an_engine_that_ran_before_its_owner_is_not_cut_off():
    world = World()
    world.hear(A, ResidencyPhase.UP)
    world.hear(B)
    world.demand.awaited(0, {"blue": 10.0})
    world.monitors[A].state = State.UP
    world.pass_time(TAKEN_OVER - 1)
    assert world.monitors[A].state is State.STOPPED, "it takes no new ones"
    world.monitors[A].in_flight = 1
    world.pass_time(5)
    assert world.asked == []
    world.monitors[A].in_flight = 0
    world.pass_time(LOOK)
    assert world.asked == [("end", A)]


def test_one_that_was_starting_before_its_owner_has_its_cards():
    world = World()
    world.hear(A, ResidencyPhase.STARTING)
    world.hear(B)
    world.demand.awaited(0, {"red": 0.0, "blue": 10.0})
    world.pass_time(1)
    assert world.asked == [], "not even the one that has been waited for longer"
    world.demand.awaited(0, {"blue": 11.0})
    world.pass_time(TAKEN_OVER)
    assert world.asked == [("end", A)], "a start that nobody waits for gives way"
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked[1:] == [("run", B)]


def test_one_that_was_ending_before_its_owner_has_its_cards_until_its_end():
    world = World()
    world.hear(A, ResidencyPhase.LEAVING)
    world.hear(B)
    world.demand.awaited(0, {"red": 0.0, "blue": 0.0})
    world.pass_time(1)
    assert world.asked == []
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked == [("run", B)]


def test_one_that_was_leaving_before_its_owner_gets_no_requests_though_it_answers_probes():
    world = World()
    world.monitors[A].state = State.UP
    world.pass_time(1)
    assert world.monitors[A].state is State.UP, "until its parent has said what it does, it may serve"
    world.hear(A, ResidencyPhase.LEAVING)
    assert world.monitors[A].state is State.STOPPED, "what it got now would be cut off, or wait until somebody wakes it"
    world.monitors[A].state = State.UP  # as where its operator undrains it
    world.pass_time(LOOK)
    assert world.monitors[A].state is State.STOPPED
    world.hear(B)
    world.hear(A)
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    assert (world.asked, world.monitors[A].state) == ([("run", A)], State.STARTING)


@pytest.mark.parametrize("phase", [ResidencyPhase.LEAVING, ResidencyPhase.STOPPED])
def test_one_that_leaves_or_does_not_run_gets_no_requests_though_its_operator_undrains_it(phase):
    world = World()
    world.hear(A, phase)
    world.monitors[A].state = State.STARTING
    world.demand.undrained(A)
    assert world.monitors[A].state is State.STOPPED, "a probe may find it up before the next look"


def test_one_that_runs_is_let_back_when_its_operator_undrains_it():
    world = World()
    world.hear(A, ResidencyPhase.UP)
    world.monitors[A].state = State.STARTING
    world.demand.undrained(A)
    world.demand.undrained(EndpointId("no engine on demand"))
    assert world.monitors[A].state is State.STARTING


def test_of_one_that_is_lost_nothing_is_expected_and_nothing_is_started_in_its_place(world):
    world.demand.awaited(0, {"red": 0.0, "blue": 0.0})
    world.pass_time(LOOK)
    world.lose(A, B)
    assert world.told[-2:] == [(A, None, False), (B, None, False)]
    assert world.demand.ready_in() == {A: None, B: None}
    told = len(world.told)
    world.pass_time(30)
    assert (world.asked, len(world.told)) == ([("run", A)], told), "who waits is not told of ever later times"


def test_that_nobody_launches_one_that_is_waited_for_is_logged_once(world):
    with structlog.testing.capture_logs() as logs:
        world.lose(A, B)
        world.pass_time(MISSED + 1)
        assert logs == []
        world.demand.awaited(0, {"red": 0.0})
        world.pass_time(MISSED + 1)
    assert [(line["event"], line["endpoint"]) for line in logs] == [
        ("nobody launches an engine that a request waits for", A)
    ]


def test_one_that_its_parent_does_not_launch_is_in_nobodys_way_and_that_is_logged(world):
    with structlog.testing.capture_logs() as logs:
        world.lose(A, B)
        world.pass_time(MISSED + 1)
        world.demand.awaited(0, {"red": 0.0, "blue": 0.0})
        world.pass_time(1)
        assert world.asked == [], "nothing is heard of either"
        world.hear(B)
        world.pass_time(LOOK)
    assert world.asked == [("run", B)]
    assert A in [line["endpoint"] for line in logs if line["event"].startswith("nobody launches")]


@pytest.mark.parametrize("phase", [ResidencyPhase.STARTING, ResidencyPhase.UP])
def test_one_that_is_found_again_as_it_was_is_not_started_twice(world, phase):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.lose(A, B)
    world.hear(B)
    world.hear(A, phase)
    world.pass_time(1)
    assert world.asked == [("run", A)]
    world.come_up(A)
    world.pass_time(1)
    assert (world.asked, world.monitors[A].state) == ([("run", A)], State.UP)


def test_a_start_that_was_lost_with_its_parent_is_asked_for_again(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.lose(A, B)
    world.hear(A)
    world.hear(B)
    world.pass_time(LOOK)
    assert world.asked == [("run", A)] * 2


def test_one_that_was_about_to_end_when_it_was_lost_serves_on(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.demand.awaited(0, {})
    world.come_up(A)
    world.monitors[A].in_flight = 1
    world.demand.awaited(0, {"blue": 0.0})
    world.pass_time(10)
    assert world.monitors[A].state is State.STOPPED
    world.lose(A, B)
    world.hear(B)
    world.hear(A, ResidencyPhase.UP)
    assert world.monitors[A].state is State.STARTING
    world.monitors[A].state = State.UP
    world.pass_time(10)
    assert world.monitors[A].state is State.STOPPED, "and leaves again, in its time"
    assert world.asked == [("run", A)]
    world.monitors[A].in_flight = 0
    world.pass_time(SETTLE)
    assert world.asked[1:] == [("end", A)]


def test_one_that_its_parent_will_end_is_left_and_not_started_again_until_it_is_back(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.demand.awaited(0, {})
    world.come_up(A)
    world.monitors[A].in_flight = 1
    world.hear(A, ResidencyPhase.UP, leaves=True)
    world.pass_time(1)
    assert (world.asked, world.monitors[A].state) == ([("run", A)], State.STOPPED)
    world.monitors[A].in_flight = 0
    world.pass_time(LOOK)
    assert world.asked[1:] == [("end", A)]
    world.demand.awaited(0, {"red": 0.0})
    world.hear(A, leaves=True)
    world.pass_time(1)
    assert len(world.asked) == 2
    world.lose(A)
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked[2:] == [("run", A)]


@pytest.mark.parametrize("gone", [A, "d:1"])
def test_one_that_is_to_end_and_no_settings_name_ends_when_nothing_is_on_it(world, gone):
    world.monitors.pop(gone, None)
    world.hear(gone, ResidencyPhase.UP)
    world.pass_time(TAKEN_OVER)
    assert world.asked == []
    world.carried.add(gone)
    world.hear(gone, ResidencyPhase.UP, leaves=True)
    world.pass_time(1)
    assert world.asked == [], "requests of other gateways are on it"
    world.carried.clear()
    world.pass_time(1)
    assert world.asked == [("end", gone)]
    world.hear(gone, ResidencyPhase.LEAVING, leaves=True)
    world.hear(gone, leaves=True)
    world.pass_time(1)
    assert len(world.asked) == 1


@pytest.mark.parametrize("elsewhere", [True, False])
def test_one_that_always_runs_ends_when_nothing_is_on_it_and_gets_no_request_until_then(elsewhere):
    world = World(elsewhere=elsewhere)
    monitor = world.monitors["c:1"] = Monitor()
    monitor.state, monitor.in_flight = State.UP, 1
    world.hear("c:1", ResidencyPhase.UP, leaves=True)
    assert monitor.state is State.STOPPED
    assert "another takes its place" in monitor.status.reason, "its operator has not drained it"
    world.pass_time(TAKEN_OVER + SETTLE)
    assert world.asked == []
    monitor.in_flight = 0
    world.pass_time(LOOK)
    assert world.asked == [("end", "c:1")]
    world.pass_time(1)
    assert len(world.asked) == 1


def test_where_the_only_front_is_in_this_process_all_is_known_at_once():
    world = World(elsewhere=False)
    world.hear("c:1", ResidencyPhase.UP, leaves=True)
    world.pass_time(SETTLE + LOOK)
    assert world.asked == [("end", "c:1")]


@pytest.mark.parametrize("then", ["it is lost", "it is configured again", "it has ended", "nothing waits for it"])
def test_one_that_is_not_to_end_any_more_goes_on(then):
    world = World()
    monitor = world.monitors.pop(A)
    world.hear(A, ResidencyPhase.UP, leaves=True)
    world.pass_time(1)
    match then:
        case "it is lost":
            world.lose(A)
        case "it is configured again":
            world.monitors[A] = monitor
            world.hear(A, ResidencyPhase.UP)
        case "it has ended":
            world.hear(A)
        case _:
            world.hear(A, ResidencyPhase.UP)
    world.pass_time(TAKEN_OVER)
    assert world.asked == []


def test_what_a_late_front_has_on_one_that_no_settings_name_is_not_cut_off():
    world = World()
    del world.monitors[A]
    world.hear(A, ResidencyPhase.UP, leaves=True)
    world.pass_time(TAKEN_OVER - 1)
    assert world.asked == []
    world.carried.add(A)
    world.pass_time(2)
    assert world.asked == []


def test_a_start_that_an_earlier_owner_ordered_is_known_though_it_comes_late(world):
    world.hear(A, ResidencyPhase.STARTING)
    world.demand.awaited(0, {"blue": 0.0})
    world.pass_time(TAKEN_OVER + 1)
    assert world.asked == [("end", A)], "it was for nobody, and has the cards"
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked[1:] == [("run", B)]


def test_its_parent_hears_what_is_seen_of_an_engine_as_it_may_hang_elsewhere(world):
    def seen(seconds=1):
        world.seen.clear()
        world.pass_time(seconds)
        return [(state, reason) for at, state, reason in world.seen if at == A]

    world.demand.awaited(0, {"red": 0.0})
    assert seen()[-1] == ("starting", "no reason")
    world.come_up(A)
    world.monitors[A].state, world.monitors[A].status.reason = State.HUNG, "no progress"
    assert seen() == [("hung", "no progress")]
    world.lose(A, B)
    assert seen() == []
    world.hear(A, ResidencyPhase.UP)
    assert seen() == [("hung", "no progress")], "whoever has it now knows nothing"


def test_why_one_did_not_start_counts_once_however_often_it_is_told(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.hear(A, wrong="No memory.")
    world.lose(A, B)
    world.hear(B)
    world.hear(A, wrong="No memory.")
    assert not any(failed for *_, failed in world.told)


def test_an_answer_that_is_only_passed_on_is_not_cut_off(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.demand.awaited(0, {})
    world.come_up(A)
    world.monitors[A].passing = 1  # a transcription that streams
    world.pass_time(12)
    assert world.monitors[A].state is State.UP
    world.demand.awaited(0, {"blue": 0.0})
    world.pass_time(5)
    assert world.monitors[A].state is State.STOPPED, "it takes no new ones"
    assert world.asked == [("run", A)]
    world.monitors[A].passing = 0
    world.pass_time(SETTLE)
    assert world.asked == [("run", A), ("end", A)]


def test_it_starts_with_a_request_and_ends_when_idle_and_nothing_is_on_it(world):
    assert world.monitors[A].state is State.STOPPED
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    assert world.asked == [("run", A)]
    assert world.told == [(A, pytest.approx(2.0), False)]
    assert world.handled == [Expected(pytest.approx(world.now + 2.0))]
    world.demand.awaited(0, {})
    world.come_up(A)
    assert world.told[-1] == (A, None, False)
    world.monitors[A].in_flight = 1
    world.pass_time(12)
    assert world.monitors[A].state is State.UP
    world.monitors[A].in_flight = 0
    world.pass_time(10.2)
    assert world.monitors[A].state is State.STOPPED
    world.monitors[A].in_flight = 1  # one that was sent just before
    world.pass_time(1)
    assert world.asked == [("run", A)]
    world.monitors[A].in_flight = 0
    world.pass_time(SETTLE)
    assert world.asked == [("run", A), ("end", A)]


def test_another_model_waits_until_its_cards_are_free(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.come_up(A)
    world.demand.awaited(0, {})
    world.demand.awaited(1, {"blue": 0.0})
    world.pass_time(3)
    assert world.asked == [("run", A), ("end", A)]
    assert world.demand.ready_in()[B] == pytest.approx(2.0)
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked[2:] == [("run", B)]
    world.demand.left(1)
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    assert world.asked[3:] == [("end", B)], "a start that nobody waits for gives way"


def test_a_start_that_fails_is_tried_once_more_and_then_those_that_wait_are_told(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.hear(A, wrong="No memory.")
    world.pass_time(LOOK)
    assert world.asked == [("run", A)] * 2
    assert not any(failed for *_, failed in world.told)
    world.hear(A, wrong="No memory.")
    assert world.told[-1] == (A, None, True)
    assert world.handled[-1] == Expected(None, failed=True)
    world.pass_time(0.5)
    assert len(world.asked) == 2
    world.pass_time(1)
    assert len(world.asked) == 3, "whoever comes then has it tried again"


def test_an_engine_that_never_starts_is_told_of_however_often_it_was_tried(world):
    for _ in range(1100):
        world.hear(A, wrong="No memory.")
    assert world.told == [(A, None, True)] * 1099


def test_an_endpoint_that_its_operator_drained_is_not_started(world):
    world.monitors[A].drained = True
    world.monitors[A].state = State.DRAINING
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(1)
    assert world.asked == []
    assert world.monitors[A].state is State.DRAINING


def test_one_that_no_settings_name_any_more_leaves_its_place_to_another_and_runs_until_then(world):
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    world.come_up(A)
    world.demand.awaited(0, {"blue": 0.0})
    world.monitors[A].drained, world.monitors[A].state = True, State.DRAINING
    assert world.demand.runs(A)
    world.pass_time(2)
    assert world.asked[1:] == [("end", A)]
    assert not world.demand.runs(A), "its parent was told"
    world.hear(A)
    world.pass_time(LOOK)
    assert world.asked[2:] == [("run", B)]


def test_one_that_was_not_heard_of_or_ended_by_itself_is_not_to_be_ended(world):
    assert not world.demand.runs(A)
    world.demand.awaited(0, {"red": 0.0})
    world.pass_time(LOOK)
    assert world.demand.runs(A)
    world.lose(A)
    assert not world.demand.runs(A)
    world.hear(A, ResidencyPhase.UP)
    assert world.demand.runs(A)
    world.hear(A, wrong="it crashed")
    assert not world.demand.runs(A)
