import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace as replaced

from engine.assembly import assembled
from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, Crashed, GaveUp
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.kind import VLLM
from gateway.admission.events import ResidencyPhase
from gateway.app.parent import END, RUN
from gateway.pools.launcher import EngineNews
from gateway.serve.on_demand_engines import _LOOK as LOOK
from gateway.serve.on_demand_engines import Attendant
from tests.ports import free_port


class Supervisor:
    """Starts and ends engines as a test says."""

    def __init__(self):
        self.done = []
        self.failure = None
        self.begun, self.ready = asyncio.Event(), asyncio.Event()

    async def add(self, engine):
        self.done.append(("add", engine.name))
        self.begun.set()
        await self.ready.wait()
        return self.failure

    async def remove(self, name):
        self.done.append(("remove", name))
        await asyncio.sleep(0)

    def interrupt(self, name):
        self.done.append(("interrupt", name))
        self.failure = Diagnosis("It was stopped before it was ready.")
        self.ready.set()


def by_settings(engine):
    """The place of an engine by the settings that it was started with."""
    return engine.place


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    return assembled(EngineSpec(VLLM, "engine m", "org/m", "m", free_port(), Path("/python")), Policy())


@pytest.fixture
async def world(engine):
    supervisor, told = Supervisor(), []
    attendant = Attendant(supervisor, told.append, by_settings)
    attendant.add(engine)
    assert told == [EngineNews(engine.spec.address, ResidencyPhase.STOPPED)]
    told.clear()
    yield supervisor, attendant, told
    attendant.close()


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_starts_and_ends_an_engine_as_it_is_told_and_says_how_that_went(world, engine):
    supervisor, attendant, told = world
    at = engine.spec.address
    supervisor.ready.set()
    attendant.obey(RUN, at)
    attendant.on_event(BecameReady("engine m", 2.5))
    await settled()
    assert told == [EngineNews(at, phase, 2.5) for phase in (ResidencyPhase.STARTING, ResidencyPhase.UP)]
    attendant.obey(END, at)
    await settled()
    assert told[2:] == [EngineNews(at, phase, 2.5) for phase in (ResidencyPhase.LEAVING, ResidencyPhase.STOPPED)]
    assert supervisor.done == [("add", "engine m"), ("remove", "engine m")]
    attendant.obey(RUN, "127.0.0.1:1")
    await settled()
    assert len(supervisor.done) == 2


async def test_a_start_that_is_not_wanted_any_more_is_broken_off(world, engine):
    supervisor, attendant, told = world
    attendant.obey(RUN, engine.spec.address)
    await supervisor.begun.wait()
    attendant.obey(END, engine.spec.address)
    await settled()
    assert supervisor.done == [("add", "engine m"), ("interrupt", "engine m")]
    assert told[1:] == [EngineNews(engine.spec.address, ResidencyPhase.STOPPED)]


async def test_a_process_that_begins_to_decide_is_told_of_a_start_under_way(world, engine):
    supervisor, attendant, told = world
    attendant.obey(RUN, engine.spec.address)
    await supervisor.begun.wait()
    told.clear()
    attendant.say_all()
    assert told == [EngineNews(engine.spec.address, ResidencyPhase.STARTING, turn=1)]
    supervisor.ready.set()


async def test_why_one_does_not_start_or_was_given_up_is_told(world, engine):
    supervisor, attendant, told = world
    supervisor.failure = Diagnosis("No memory.")
    supervisor.ready.set()
    attendant.obey(RUN, engine.spec.address)
    await settled()
    assert (told[-1].phase, told[-1].wrong) == (ResidencyPhase.STOPPED, "No memory.")
    supervisor.failure = None
    attendant.obey(RUN, engine.spec.address)
    await settled()
    assert told[-1].phase is ResidencyPhase.UP
    attendant.on_event(GaveUp("engine m", Diagnosis("It crashed.")))
    await settled()
    assert (told[-1].phase, told[-1].wrong) == (ResidencyPhase.STOPPED, "It crashed.")


async def test_one_that_is_to_go_is_left_by_its_requests_first(world, engine):
    supervisor, attendant, told = world
    supervisor.ready.set()
    attendant.obey(RUN, engine.spec.address)
    await settled()
    told.clear()
    leaving = asyncio.create_task(attendant.leave(engine, 60.0))
    await asyncio.sleep(2 * LOOK)
    assert not leaving.done()
    assert told == [EngineNews(engine.spec.address, ResidencyPhase.UP, leaves=True)]
    attendant.obey(END, engine.spec.address)
    await leaving
    assert supervisor.done[1:] == [("remove", "engine m")]
    attendant.obey(RUN, engine.spec.address)
    await settled()
    assert len(supervisor.done) == 2, "an order from before that was known"
    await attendant.remove(engine)
    attendant.add(engine)
    assert told[-1] == EngineNews(engine.spec.address, ResidencyPhase.STOPPED)


async def test_of_one_that_always_runs_it_only_waits_until_nothing_is_on_it(world, engine):
    supervisor, attendant, told = world
    always = replace(engine, spec=replace(engine.spec, port=free_port()))
    leaving = asyncio.create_task(attendant.leave(always, 60.0))
    await settled()
    attendant.say_all()
    await asyncio.sleep(2 * LOOK)
    assert not leaving.done()
    said = EngineNews(always.spec.address, ResidencyPhase.UP, leaves=True)
    assert told == [said, EngineNews(engine.spec.address, ResidencyPhase.STOPPED, turn=1), replaced(said, turn=1)]
    attendant.obey(END, always.spec.address)
    await leaving
    assert supervisor.done == []


async def test_one_that_its_requests_do_not_leave_is_not_waited_for_for_ever(world, engine):
    supervisor, attendant, _ = world
    supervisor.ready.set()
    attendant.obey(RUN, engine.spec.address)
    await settled()
    with structlog.testing.capture_logs() as logs:
        await attendant.leave(engine, 2 * LOOK)
    assert "did not end in 0.1 s" in logs[0]["event"]


async def test_its_port_is_kept_while_it_does_not_run(world, engine):
    supervisor, attendant, _ = world

    def is_taken():
        with socket.socket() as other:
            try:
                other.bind(("127.0.0.1", engine.spec.port))
            except OSError:
                return True
        return False

    assert is_taken()
    supervisor.ready.set()
    attendant.obey(RUN, engine.spec.address)
    await settled()
    assert not is_taken()
    await attendant.remove(engine)
    assert not is_taken()
    assert supervisor.done[-1] == ("remove", "engine m")


@pytest.fixture
async def sleeper(engine, monkeypatch):
    """An engine that sleeps, which it did at once; `can` is taken for each time that it is to sleep or to wake."""
    supervisor, told, can = Supervisor(), [], asyncio.Queue()
    asked = []

    async def turn(url):
        asked.append(url)
        return await can.get()

    monkeypatch.setattr("gateway.serve.on_demand_engines.fall_asleep", turn)
    monkeypatch.setattr("gateway.serve.on_demand_engines.wake", turn)
    attendant = Attendant(supervisor, told.append, by_settings)
    attendant.add(replace(engine, sleeps=True))
    supervisor.ready.set()
    attendant.obey(RUN, engine.spec.address)
    attendant.on_event(BecameReady("engine m", 60.0))
    await settled()
    attendant.obey(END, engine.spec.address)
    can.put_nowait(True)
    await settled()
    assert asked == [engine.spec.url]
    assert supervisor.done == [("add", "engine m")]
    assert told[-1] == EngineNews(engine.spec.address, ResidencyPhase.STOPPED, 60.0)
    supervisor.done.clear()
    yield supervisor, attendant, told, can
    attendant.close()


async def test_one_that_sleeps_wakes_and_that_is_what_its_next_start_takes(sleeper, engine):
    supervisor, attendant, told, can = sleeper
    attendant.obey(RUN, engine.spec.address)
    can.put_nowait(True)
    await settled()
    assert (told[-1].phase, told[-1].takes < 1) == (ResidencyPhase.UP, True)
    attendant.obey(END, engine.spec.address)
    can.put_nowait(False)
    await settled()
    assert supervisor.done == [("remove", "engine m")], "it cannot sleep any more"
    assert told[-1] == EngineNews(engine.spec.address, ResidencyPhase.STOPPED, 60.0), "so it is a whole start again"


async def test_one_that_does_not_wake_is_ended_and_started(sleeper, engine):
    supervisor, attendant, told, can = sleeper
    attendant.obey(RUN, engine.spec.address)
    can.put_nowait(False)
    await settled()
    assert supervisor.done == [("remove", "engine m"), ("add", "engine m")]
    assert told[-1].phase is ResidencyPhase.UP


async def test_one_that_ends_in_its_sleep_is_not_started_until_it_is_wanted(sleeper, engine):
    supervisor, attendant, told, _ = sleeper
    attendant.on_event(Crashed("engine m", Diagnosis("It was killed.")))
    await settled()
    assert supervisor.done == [("remove", "engine m")]
    attendant.obey(RUN, engine.spec.address)
    await settled()
    assert supervisor.done[1:] == [("add", "engine m")], "there is nothing to wake"
    assert told[-1].phase is ResidencyPhase.UP


async def test_one_that_ends_while_it_wakes_is_ended_once(sleeper, engine):
    supervisor, attendant, told, can = sleeper
    attendant.obey(RUN, engine.spec.address)
    await settled()
    attendant.on_event(Crashed("engine m", Diagnosis("It was killed.")))
    can.put_nowait(False)
    await settled()
    assert supervisor.done == [("remove", "engine m"), ("add", "engine m")]
    assert told[-1].phase is ResidencyPhase.UP


@pytest.mark.parametrize("wakes", [False, True])
async def test_one_that_sleeps_or_wakes_ends_when_it_is_taken_out(sleeper, engine, wakes):
    supervisor, attendant, _, can = sleeper
    if wakes:
        attendant.obey(RUN, engine.spec.address)
        await settled()
        can.put_nowait(True)
    await attendant.remove(engine)
    assert supervisor.done == [("remove", "engine m")]


@pytest.fixture
async def drowsy(sleeper, engine):
    """One that is just falling asleep."""
    supervisor, attendant, told, can = sleeper
    attendant.obey(RUN, engine.spec.address)
    can.put_nowait(True)
    await settled()
    attendant.obey(END, engine.spec.address)
    await settled()
    return supervisor, attendant, told, can


async def test_one_that_falls_asleep_ends_when_it_is_taken_out(drowsy, engine):
    supervisor, attendant, _, can = drowsy
    removing = asyncio.create_task(attendant.remove(engine))
    await settled()
    can.put_nowait(True)
    await removing
    assert supervisor.done == [("remove", "engine m")]


async def test_one_that_crashes_while_it_falls_asleep_ends(drowsy):
    supervisor, attendant, told, can = drowsy
    attendant.on_event(Crashed("engine m", Diagnosis("It was killed.")))
    can.put_nowait(True)
    await settled()
    assert supervisor.done == [("remove", "engine m")]
    assert told[-1].phase is ResidencyPhase.STOPPED


async def test_one_that_does_not_wake_and_is_not_wanted_any_more_is_not_started(sleeper, engine):
    supervisor, attendant, told, can = sleeper
    attendant.obey(RUN, engine.spec.address)
    await settled()
    attendant.obey(END, engine.spec.address)
    can.put_nowait(False)
    await settled()
    assert supervisor.done == [("remove", "engine m")]
    assert told[-1].phase is ResidencyPhase.STOPPED


async def running(supervisor, attendant, engine):
    supervisor.ready.set()
    attendant.obey(RUN, engine.spec.address)
    await settled()


async def test_none_starts_in_the_place_of_one_that_is_about_to_go(world, engine):
    supervisor, attendant, _ = world
    old = replace(engine, name="engine old", spec=replace(engine.spec, port=free_port()), on_demand=True, place="card")
    new = replace(old, name="engine new", spec=replace(engine.spec, port=free_port()))
    attendant.add(old)
    await running(supervisor, attendant, old)
    attendant.add(new)
    with attendant.going([old]):
        attendant.obey(RUN, new.spec.address)
        await running(supervisor, attendant, engine)
        assert supervisor.done == [("add", "engine old"), ("add", "engine m")], "another place is free"
        await attendant.remove(old)
        await settled()
    assert supervisor.done[2:] == [("remove", "engine old"), ("add", "engine new")]


async def test_one_on_demand_does_not_start_before_one_has_gone_that_always_ran(world, engine):
    supervisor, attendant, _ = world
    old = replace(engine, spec=replace(engine.spec, port=free_port()))
    with attendant.going([old]):
        await running(supervisor, attendant, engine)
        assert supervisor.done == []
    await settled()
    assert supervisor.done == [("add", "engine m")]


async def test_none_starts_on_the_gpus_of_one_that_is_about_to_go(world, engine):
    supervisor, attendant, _ = world
    spec = replace(engine.spec, gpus=("0", "1"))
    old = replace(engine, name="engine old", spec=replace(spec, port=free_port()), on_demand=True, place="old")
    new = replace(old, name="engine new", spec=replace(spec, port=free_port(), gpus=("1",)), place="new")
    for one in (old, new):
        attendant.add(one)
    await running(supervisor, attendant, old)
    with attendant.going([old]):
        await running(supervisor, attendant, new)
        assert supervisor.done == [("add", "engine old")]
        await attendant.remove(old)
        await settled()
    assert supervisor.done[1:] == [("remove", "engine old"), ("add", "engine new")]


@pytest.mark.parametrize("goes", [False, True])
async def test_two_that_share_gpus_run_side_by_side(world, engine, goes):
    supervisor, attendant, _ = world
    one = replace(engine, spec=replace(engine.spec, gpus=("0",)), place="m", shares=True, on_demand=True)
    attendant.renew(one)
    other = replace(one, name="engine n", spec=replace(one.spec, port=free_port()), place="n")
    attendant.add(other)
    with attendant.going([one] if goes else []):
        await running(supervisor, attendant, one)
        await running(supervisor, attendant, other)
        assert supervisor.done == [("add", "engine m"), ("add", "engine n")]


async def test_one_that_is_in_the_way_of_another_is_to_end_until_nothing_waits_for_that(world, engine):
    supervisor, attendant, told = world
    other = replace(engine, name="engine n", spec=replace(engine.spec, port=free_port()))
    attendant.add(other)
    await running(supervisor, attendant, engine)
    told.clear()
    for _ in range(2):
        attendant.obey(RUN, other.spec.address)
    assert told == [EngineNews(engine.spec.address, ResidencyPhase.UP, leaves=True)]
    attendant.obey(END, other.spec.address)
    assert told[-1] == EngineNews(engine.spec.address, ResidencyPhase.UP)
    attendant.obey(RUN, other.spec.address)
    attendant.obey(END, engine.spec.address)
    await settled()
    assert [news for news in told if news.address == engine.spec.address][-1] == EngineNews(
        engine.spec.address, ResidencyPhase.STOPPED
    )
    assert supervisor.done == [("add", "engine m"), ("remove", "engine m"), ("add", "engine n")]


async def test_of_two_that_wait_for_one_place_one_starts(world, engine):
    supervisor, attendant, _ = world
    others = [
        replace(engine, name=f"engine {number}", spec=replace(engine.spec, port=free_port())) for number in (1, 2)
    ]
    await running(supervisor, attendant, engine)
    for other in others:
        attendant.add(other)
        attendant.obey(RUN, other.spec.address)
    attendant.obey(END, engine.spec.address)
    await settled()
    assert len(supervisor.done) == 3
    assert supervisor.done[:2] == [("add", "engine m"), ("remove", "engine m")]


async def test_what_waits_is_for_the_next_process_that_decides_to_order(world, engine):
    supervisor, attendant, told = world
    other = replace(engine, name="engine n", spec=replace(engine.spec, port=free_port()))
    attendant.add(other)
    await running(supervisor, attendant, engine)
    attendant.obey(RUN, other.spec.address)
    told.clear()
    attendant.say_all()
    assert {news.address: news.phase for news in told} == {
        engine.spec.address: ResidencyPhase.UP,
        other.spec.address: ResidencyPhase.STOPPED,
    }
    attendant.obey(END, engine.spec.address)
    await settled()
    assert supervisor.done == [("add", "engine m"), ("remove", "engine m")]


async def test_which_place_an_engine_has_is_said_by_who_decides(engine):
    supervisor, places = Supervisor(), {"engine m": "m", "engine n": "n"}
    attendant = Attendant(supervisor, lambda _news: None, lambda engine: places[engine.name])
    other = replace(engine, name="engine n", spec=replace(engine.spec, port=free_port()))
    for each in (engine, other):
        attendant.add(each)
    await running(supervisor, attendant, engine)
    places.update({"engine m": "card", "engine n": "card"})
    await running(supervisor, attendant, other)
    assert supervisor.done == [("add", "engine m")]
    attendant.close()


async def test_none_starts_in_the_place_of_one_that_nobody_has_ended(world, engine):
    """In a tier the gateway that decides may have been reloaded already, and know of that one no more."""
    supervisor, attendant, _ = world
    old = replace(engine, name="engine old", spec=replace(engine.spec, port=free_port()), place="another")
    attendant.add(old)
    await running(supervisor, attendant, old)
    attendant.renew(replace(old, place=engine.place))
    await running(supervisor, attendant, engine)
    assert supervisor.done == [("add", "engine old")]
    await attendant.remove(old)
    await settled()
    assert supervisor.done[1:] == [("remove", "engine old"), ("add", "engine m")]


async def test_one_that_is_about_to_go_does_not_start_beside_one_in_its_place(world, engine):
    supervisor, attendant, _ = world
    old = replace(engine, name="engine old", spec=replace(engine.spec, port=free_port()), on_demand=True)
    attendant.add(old)
    with attendant.going([old]):
        await running(supervisor, attendant, engine)
        attendant.obey(RUN, old.spec.address)
        await settled()
        assert supervisor.done == [("add", "engine m")]
        attendant.obey(END, engine.spec.address)
        await settled()
    assert supervisor.done[1:] == [("remove", "engine m"), ("add", "engine old")]


async def test_none_starts_while_the_engine_of_another_kvgate_answers_in_its_place(world, engine):
    supervisor, attendant, told = world
    other = replace(engine, name="engine n", spec=replace(engine.spec, port=free_port()))
    attendant.add(other)
    supervisor.ready.set()
    with socket.create_server((other.spec.host, other.spec.port)):
        for _ in range(2):
            with structlog.testing.capture_logs() as logs:
                attendant.obey(RUN, engine.spec.address)
                await asyncio.sleep(3 * LOOK)
            assert (supervisor.done, told[-1].phase) == ([], ResidencyPhase.STARTING)
            assert [line["at"] for line in logs] == [other.spec.address]
            attendant.obey(END, engine.spec.address)
            await asyncio.sleep(2 * LOOK)
            assert told[-1].phase is ResidencyPhase.STOPPED
        attendant.obey(RUN, engine.spec.address)
        await asyncio.sleep(2 * LOOK)
    await asyncio.sleep(2 * LOOK)
    assert supervisor.done == [("add", "engine m")]


async def test_what_answers_for_long_in_its_place_is_left_to_the_start_to_say(world, engine):
    supervisor, attendant, _ = world
    attendant.renew(replace(engine, policy=replace(engine.policy, stop_timeout=LOOK)))
    with socket.create_server((engine.spec.host, engine.spec.port)):
        attendant.obey(RUN, engine.spec.address)
        await asyncio.wait_for(supervisor.begun.wait(), 10)
