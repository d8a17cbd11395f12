import asyncio
import signal
from itertools import count

import msgspec
import pytest

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, Crashed, Stopped
from gateway.admission.events import ResidencyPhase
from gateway.app.parent import END, ENDED, NEWS, RUN
from gateway.config.settings import Settings
from gateway.pools.launcher import EngineEnded, EngineNews
from gateway.serve.engines import Engines
from gateway.serve.gateways import FailedError
from gateway.serve.launch import place_by, programs
from tests.ports import free_port
from tests.until import PATIENCE, until


class Supervisor:
    """Runs nothing: it notes what is to start and to end."""

    def __init__(self, done):
        self.done = done
        self.fails = set()
        """Models whose engines do not start."""
        self.given_up = set()
        """Names of programs that are."""
        self.programs = {}
        self.told = []
        self.on_leaves = lambda _address: None
        """Does what the process that decides does when it hears that an engine leaves."""

    async def add(self, program):
        if program.spec.served_name in self.fails:
            return Diagnosis("There is no room.")
        self.launch(program, "add")
        return None

    def launch(self, program, how="launch"):
        self.programs[program.name] = program
        self.given_up.discard(program.name)
        self.done.append(f"{how} {program.name}")

    async def remove(self, name, by=signal.SIGTERM):
        self.programs.pop(name, None)
        self.given_up.discard(name)
        self.done.append(f"remove {name}")

    def program(self, name):
        return self.programs[name]

    def gave_up(self, name):
        return name in self.given_up

    def tell(self, _name, line):
        self.told.append(line)
        if line.startswith(NEWS) and parsed(line).leaves:
            self.on_leaves(parsed(line).address)


class Gateways:
    """They note what they know after each change."""

    def __init__(self, done, running):
        self.done = done
        self.running = running
        self.fails = False
        self.knew = []
        """After each change: models and how many engines each has."""
        self.reached, self.new = set(), False

    @property
    def settings(self):
        return self.running[0].settings

    @property
    def voice(self):
        return self.running[0].name

    def place(self, engine):
        return place_by(self.running[0], engine)

    async def hand_over(self, gateways):
        self.reached, self.new = set(), True
        self._become("to", gateways)

    async def go_by(self, gateways):
        """Live, but for the first time."""
        if self.new:
            self._become("live to", gateways)
        else:
            await self.hand_over(gateways)

    def reach(self, engine):
        return engine.spec.port in self.reached

    def _become(self, how, gateways):
        if self.fails:
            raise FailedError("no owner starts")
        self.running = list(gateways)
        self.reached.update(self.ports)
        self.done.append(f"{how} {' '.join(map(str, self.ports))}")
        self.knew.append({model.name: len(model.endpoints) for model in self.settings.models})

    @property
    def ports(self):
        """Of the engines that they know."""
        return [endpoint.url.port for model in self.settings.models for endpoint in model.endpoints]


class World:
    """A kvgate of these models, each a name and how its engine differs."""

    def __init__(self, models, **more):
        self.done, self.said = [], []
        self.more = more
        settings = self.settings(models)
        engines, gateways = programs(settings)
        self.supervisor, self.gateways = Supervisor(self.done), Gateways(self.done, gateways)
        self.engines = Engines(engines, self.supervisor, self.gateways, self.said.append)
        self.supervisor.on_leaves = self.left
        for engine in engines:
            if not engine.on_demand:
                self.supervisor.programs[engine.name] = engine

    def left(self, address):
        self.done.append(f"left {address.rpartition(':')[2]}")
        asyncio.get_running_loop().call_soon(self.engines.obey, END, address)

    def settings(self, models):
        engine = {"model": "org/m", "python": "/python", "stop_timeout": 0.1}
        described = [{"name": name, "engine": {**engine, **differs}} for name, differs in models.items()]
        return Settings.model_validate({"models": described, **self.more})

    async def become(self, models):
        settings = self.settings(models)
        engines, gateways = programs(settings, running=self.engines.running)
        await self.engines.become(engines, gateways, settings)

    @property
    def names(self):
        return [engine.name for engine in self.engines.running]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Each engine has a port of its own: nothing listens there, so a free one could be another's."""
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    monkeypatch.setattr("gateway.serve.launch.free_port", count(20_000).__next__)


@pytest.fixture
def make():
    made = []

    def make(models, **more):
        made.append(World(models, **more))
        return made[-1]

    yield make
    for world in made:
        world.engines.close()


LONGER = {"args": ["--max-model-len", "4096"]}
SURGE, IN_PLACE, ON_DEMAND = {"reload": "surge"}, {"reload": "in_place"}, {"on_demand": True}


async def test_an_engine_beside_the_old_one_takes_over_when_it_is_ready(make):
    world = make({"red": SURGE})
    await world.become({"red": SURGE | LONGER})
    (engine,) = world.engines.running
    assert world.done == ["add engine red #2", f"to {engine.spec.port}", "remove engine red"]


async def test_the_engine_of_another_model_comes_first_and_the_one_without_a_model_goes_last(make):
    world = make({"red": SURGE, "blue": SURGE})
    await world.become({"red": SURGE, "green": SURGE})
    assert world.names == ["engine red", "engine green"]
    await world.become({"red": SURGE})
    assert world.done[-2:] == [f"to {world.engines.running[0].spec.port}", "remove engine green"]


async def test_an_engine_in_its_place_starts_when_nothing_is_on_the_old_one_which_serves_until_only_that_is_waited_for(
    make,
):
    world = make({"red": IN_PLACE})
    (old,) = world.engines.running
    await world.become({"red": IN_PLACE | LONGER})
    (new,) = world.engines.running
    assert world.done == [
        f"to {old.spec.port}",
        f"live to {new.spec.port}",
        f"left {old.spec.port}",
        "remove engine red",
        "add engine red #2",
    ]


async def test_an_engine_of_another_name_in_its_place_is_waited_for_at_once(make):
    """Its adapters may have the names that those of the old one had."""
    world = make({"red": IN_PLACE})
    await world.become({"blue": IN_PLACE})
    (new,) = world.engines.running
    assert world.done == [f"to {new.spec.port}", "remove engine red", "add engine blue"]


async def test_gateways_take_over_once_for_all_engines_of_one_reload_that_keep_their_names(make):
    world = make({"red": SURGE, "blue": SURGE, "grey": IN_PLACE})
    _red, blue, grey = (engine.spec.port for engine in world.engines.running)
    await world.become({"red": SURGE | LONGER, "blue": SURGE | LONGER, "grey": IN_PLACE | LONGER})
    new = [engine.spec.port for engine in world.engines.running]
    changes = [done for done in world.done if done.startswith(("to", "live", "left"))]
    assert changes == [
        f"to {new[0]} {blue} {grey}",
        f"live to {new[0]} {new[1]} {grey}",
        f"left {blue}",
        f"live to {new[0]} {new[1]} {grey}",
        f"live to {new[0]} {new[1]} {new[2]}",
        f"left {grey}",
    ]


async def test_the_old_engine_comes_back_again_and_again_if_the_one_in_its_place_does_not_start(make):
    world = make({"red": IN_PLACE})
    world.supervisor.fails.add("red")
    with pytest.raises(FailedError, match="engine red: started again as it was"):
        await world.become({"red": IN_PLACE | LONGER})
    (engine,) = world.engines.running
    assert "4096" not in engine.argv
    assert world.done[-3:] == ["remove engine red", "launch engine red", f"live to {engine.spec.port}"]


async def test_an_engine_beside_the_old_one_that_does_not_start_changes_nothing(make):
    world = make({"red": SURGE})
    world.supervisor.fails.add("red")
    with pytest.raises(FailedError, match="There is no room"):
        await world.become({"red": SURGE | LONGER})
    assert (world.names, world.done) == (["engine red"], [])


async def test_each_model_is_served_until_its_engine_s_turn_and_one_without_a_successor_to_the_end(make):
    world = make({"red": SURGE, "blue": SURGE, "grey": SURGE})
    await world.become({"red": SURGE | LONGER, "navy": SURGE})
    assert world.gateways.knew == [
        {"red": 1, "blue": 1, "grey": 1},
        {"red": 1, "navy": 1, "grey": 1},
        {"red": 1, "navy": 1},
    ]
    assert world.names == ["engine red #2", "engine navy"]


@pytest.mark.parametrize("how", [SURGE, IN_PLACE])
async def test_what_has_yet_to_be_replaced_serves_on_if_an_engine_does_not_start(make, how):
    world = make({"red": how, "blue": how, "grey": how})
    _, blue, grey = world.engines.running
    world.supervisor.fails.add("navy")
    with pytest.raises(FailedError, match="What has taken over stays: engine red #2"):
        await world.become({"red": how | LONGER, "navy": how})
    await world.engines.end_unknown()
    assert world.gateways.knew[-1] == {"red": 1, "blue": 1, "grey": 1}
    assert {blue.spec.port, grey.spec.port} < {*world.gateways.ports}, "at no other model's address"
    assert sorted(world.names) == ["engine blue", "engine grey", "engine red #2"]


async def test_an_engine_on_demand_is_described_anew_and_does_not_start(make):
    world = make({"red": ON_DEMAND})
    await world.become({"red": ON_DEMAND | LONGER})
    (engine,) = world.engines.running
    assert "4096" in engine.argv
    assert world.done == [f"to {engine.spec.port}"]


async def test_an_engine_that_was_given_up_is_tried_again(make):
    world = make({"red": SURGE, "blue": SURGE})
    red, blue = before = list(world.engines.running)
    assert world.engines.are(before)
    world.supervisor.given_up.add(red.name)
    assert not world.engines.are(before)
    await world.become({"red": SURGE, "blue": SURGE})
    assert world.done == ["remove engine red", "add engine red", f"to {red.spec.port} {blue.spec.port}"]
    assert world.engines.are(before)


async def test_engines_at_the_addresses_of_others_make_room_for_these_if_no_gateway_takes_over(make, tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    one, other = ({"at": f"127.0.0.1:{free_port()}", **ON_DEMAND} for _ in range(2))
    tier = {"redis": "redis://h", "advertise": f"127.0.0.1:{free_port()}", "key_file": tmp_path / "key"}
    world = make({"red": one, "blue": other}, tier=tier, server={"shutdown_timeout": 0.1})
    before = list(world.engines.running)
    world.gateways.fails = True
    with pytest.raises(FailedError):
        await world.become({"blue": one, "red": other})
    assert world.engines.running == before
    leaving = [news.address for line in world.supervisor.told if (news := parsed(line)).leaves]
    assert {*leaving} == {one["at"], other["at"]}, "others may have requests on them"


async def test_engines_that_no_gateway_knows_end(make):
    world = make({"red": SURGE})
    world.gateways.fails = True
    with pytest.raises(FailedError):
        await world.become({"red": SURGE | LONGER})
    assert world.names == ["engine red", "engine red #2"]
    await world.engines.end_unknown()
    assert (world.names, world.done[-1]) == (["engine red"], "remove engine red #2")


async def test_the_process_that_decides_hears_why_an_engine_ended_until_it_is_ready(make):
    world = make({"red": SURGE})
    world.engines.on_event(Crashed("engine red", Diagnosis("It was killed.")))
    (told,) = world.supervisor.told
    assert heard(told).cause == "It was killed."
    world.engines.on_event(BecameReady(world.gateways.voice, 1.0))
    assert world.supervisor.told == [told, told], "the next one to decide hears it too"
    world.engines.on_event(BecameReady("engine red", 1.0))
    assert heard(world.supervisor.told[-1]).cause is None
    world.engines.on_event(Stopped("engine red"))
    assert len(world.supervisor.told) == 3


async def test_an_engine_on_demand_runs_when_that_is_ordered(make):
    world = make({"red": ON_DEMAND})
    (engine,) = world.engines.running
    assert world.engines.come_and_go
    world.engines.obey(RUN, engine.spec.address)
    await until(lambda: parsed(world.supervisor.told[-1]).phase is ResidencyPhase.UP)
    assert world.done == ["add engine red"]


async def test_one_that_runs_on_demand_from_now_on_may_start_before_the_others_have_been_replaced(make, monkeypatch):
    world = make({"red": SURGE, "blue": SURGE})
    add = world.supervisor.add

    async def slow(program):
        if program.spec.served_name == "blue":
            red = next(engine for engine in world.engines.running if engine.on_demand)
            world.engines.obey(RUN, red.spec.address)
            await until(lambda: "add engine red #2" in world.done)
        return await add(program)

    monkeypatch.setattr(world.supervisor, "add", slow)
    async with asyncio.timeout(PATIENCE):
        await world.become({"red": ON_DEMAND, "blue": SURGE | LONGER})


def parsed(line):
    return msgspec.json.decode(line.removeprefix(NEWS), type=EngineNews)


def heard(line):
    return msgspec.json.decode(line.removeprefix(ENDED), type=EngineEnded)
