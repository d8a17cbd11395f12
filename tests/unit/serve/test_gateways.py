import asyncio
import signal
from pathlib import Path

import pytest

from engine.assembly import assembled
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.kind import VLLM
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve.gateways import FailedError, Gateways
from gateway.serve.launch import programs
from gateway.serve.owner_socket import OwnerSocket
from tests.until import until


class Supervisor:
    """Runs nothing: it notes what is to start, to end, and to take other settings."""

    def __init__(self, fails=()):
        self.fails = fails
        self.done = []
        self.told = {}
        """Endpoints of the first model, by the gateway that was told them last."""
        self.gateways = None
        self.wrong = ""
        self.streams = False
        """Whether a gateway alone still has some."""

    async def add(self, program):
        self.done.append(("add", program.name))
        return "The event log cannot be written." if program.name in self.fails else None

    def launch(self, program):
        self.done.append(("launch", program.name))

    async def remove(self, name, by=signal.SIGTERM):
        for _ in range(1 if name == "owner" else 5):  # a front serves its connections first
            await asyncio.sleep(0)
        while name == "gateway" and self.streams:  # noqa: ASYNC110 - the test says when they end
            await asyncio.sleep(0)
        self.done.append((by.name, name))

    def become(self, name, program, _settings):
        self.told[name] = program.settings.models[0].endpoints
        self.done.append(("become", name, program.settings.log.level))
        asyncio.get_running_loop().call_soon(self.gateways.answered, name, self.wrong)
        return True


class World:
    def __init__(self, fails=(), workers=2):
        self.owner = OwnerSocket(workers)
        self.supervisor = Supervisor(fails)
        self.said, self.successions = [], 0
        owner = self.owner if workers > 1 else None
        self.gateways = self.supervisor.gateways = Gateways(
            self.described("info", owner), self.supervisor, self.said.append, self._succeeded
        )

    def described(self, level, owner, at=9):
        models = [{"endpoints": [{"url": f"http://127.0.0.1:{at}"}]}]
        return programs(Settings.model_validate({"models": models, "log": {"level": level}}), owner=owner)[1]

    @property
    def names(self):
        return [gateway.name for gateway in self.gateways.running]

    @property
    def done(self):
        return self.supervisor.done

    def _succeeded(self):
        self.successions += 1


@pytest.fixture
def make():
    made = []

    def make(**how):
        made.append(World(**how))
        return made[-1]

    yield make
    for world in made:
        world.owner.close()


async def test_the_next_front_is_there_before_the_last_one_leaves_and_there_are_never_two_owners(make):
    world = make()
    await world.gateways.hand_over(world.described("debug", world.owner))
    assert world.names == ["owner #2", "front 1 #2", "front 2 #2"]
    done = [step for step in world.done if step[0] != "become"]
    assert done[:2] == [("add", "front 1 #2"), ("add", "front 2 #2")]
    assert done.index(("SIGUSR1", "owner")) < done.index(("add", "owner #2"))
    assert world.successions == 1
    await world.gateways.hand_over(world.described("info", world.owner))
    assert world.names == ["owner", "front 1", "front 2"]


async def test_where_the_next_owner_does_not_start_it_says_why_and_what_ran_before_runs_again(make):
    world = make(fails=["owner #2"])
    with pytest.raises(FailedError, match=r"owner #2 does not start. The event log cannot be written."):
        await world.gateways.hand_over(world.described("debug", world.owner, at=10))
    assert [gateway.settings.log.level for gateway in world.gateways.running] == ["info"] * 3
    assert world.names == ["owner", "front 1 #3", "front 2 #3"], "the first ones are yet to end"
    left = [step[1] for step in world.done if step[0] == "SIGUSR1"]
    assert left == ["owner", "front 1", "front 2", "front 1 #2", "front 2 #2"]
    assert ("launch", "owner") in world.done, "it is started again, should it end by itself just then"
    reach = {name: [at.address for at in endpoints] for name, endpoints in world.supervisor.told.items()}
    assert reach["front 1 #2"] == ["127.0.0.1:10", "127.0.0.1:9"], "until then they reach what the owner knows"
    assert world.done.index(("become", "front 1 #2", "debug")) < world.done.index(("add", "front 1 #3"))


async def test_where_the_fronts_of_before_do_not_start_again_the_others_stay(make):
    world = make(fails=["owner #2", "front 1 #3"])
    with pytest.raises(FailedError, match="owner #2 does not start"):
        await world.gateways.hand_over(world.described("debug", world.owner))
    assert world.names == ["owner", "front 1 #2", "front 2 #2"]
    assert [step[1] for step in world.done if step[0] == "SIGUSR1"] == ["owner", "front 1", "front 2"]


async def test_where_a_front_does_not_start_nothing_has_changed(make):
    world = make(fails=["front 2 #2"])
    with pytest.raises(FailedError, match="front 2 #2"):
        await world.gateways.hand_over(world.described("debug", world.owner))
    assert world.done == [("add", "front 1 #2"), ("add", "front 2 #2"), ("SIGTERM", "front 1 #2")]
    assert world.names == ["owner", "front 1", "front 2"]


async def test_one_gateway_becomes_an_owner_and_a_front_with_its_settings(make):
    world = make(workers=1)
    (alone,) = world.gateways.running
    await world.gateways.divide([], world.owner)
    assert world.done == [("add", "owner"), ("add", "front 1")]
    assert [gateway.settings.models for gateway in world.gateways.running] == [alone.settings.models] * 2
    assert world.gateways.is_owned
    assert (world.gateways.voice, world.successions) == ("owner", 1)
    world.supervisor.streams = True
    handed_over = asyncio.create_task(world.gateways.hand_over(world.described("debug", world.owner)))
    await until(lambda: ("SIGUSR1", "front 1") in world.done)
    assert ("add", "owner #2") in world.done, "other settings need not wait for its streams"
    assert not handed_over.done(), "its engines are to stay until then"
    world.supervisor.streams = False
    await handed_over
    assert ("SIGUSR1", "gateway") in world.done


@pytest.mark.parametrize("failed", ["owner", "front 1"])
async def test_one_that_cannot_be_divided_goes_on_alone(make, failed):
    world = make(workers=1, fails=[failed])
    with pytest.raises(FailedError, match=failed):
        await world.gateways.divide([], world.owner)
    assert world.names == ["gateway"]
    assert ("SIGUSR1", "gateway") not in world.done


async def test_other_settings_reach_the_owner_last_and_are_taken_back_where_one_cannot_use_them(make):
    world = make()
    await world.gateways.become(world.described("debug", world.owner))
    assert world.done == [("become", name, "debug") for name in ("front 2", "front 1", "owner")]
    world.done.clear()
    world.supervisor.wrong = "no such file"
    with pytest.raises(ConfigurationError, match="no such file"):
        await world.gateways.become(world.described("info", world.owner))
    assert world.done == [("become", "front 2", "info"), ("become", "front 2", "debug")]
    assert world.gateways.settings.log.level == "debug"
    world.supervisor.wrong = ""
    await world.gateways.become(world.described("info", world.owner))
    assert world.gateways.settings.log.level == "info", "what it answers to is what it was told last"


async def test_other_endpoints_are_gone_by_live_and_what_needs_a_new_process_is_not(make):
    world = make()
    await world.gateways.go_by(world.described("info", world.owner, at=10))
    assert world.names == ["owner", "front 1", "front 2"]
    assert {step[0] for step in world.done} == {"become"}
    await world.gateways.go_by(world.described("debug", world.owner, at=10))
    assert world.names == ["owner #2", "front 1 #2", "front 2 #2"]


async def test_gateways_of_which_one_does_not_answer_are_replaced_though_they_could_go_on(make, monkeypatch):
    world = make()
    monkeypatch.setattr(world.supervisor, "become", lambda *_: False)
    await world.gateways.go_by(world.described("info", world.owner, at=10))
    assert world.names == ["owner #2", "front 1 #2", "front 2 #2"]


async def test_settings_that_cannot_be_gone_by_fail_as_a_program_that_does_not_start(make):
    world = make()
    world.supervisor.wrong = "no such file"
    with pytest.raises(FailedError, match="no such file"):
        await world.gateways.go_by(world.described("info", world.owner, at=10))
    assert world.names == ["owner", "front 1", "front 2"]


async def test_requests_may_be_on_what_these_processes_have_known_until_others_take_over(make, tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    world = make()
    spec = EngineSpec(VLLM, "engine m", "org/m", "m", 9, Path("/python"))
    engine = assembled(spec, Policy())
    assert world.gateways.reach(engine)
    await world.gateways.go_by(world.described("info", world.owner, at=10))
    assert world.gateways.reach(engine)
    await world.gateways.hand_over(world.described("info", world.owner, at=10))
    assert not world.gateways.reach(engine)
