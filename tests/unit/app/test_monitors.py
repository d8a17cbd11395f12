import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, Capacity, Demand, EndpointId, RequestId, Verdict
from gateway.admission.policy import Policy
from gateway.app.monitors import Monitors
from gateway.app.named_files import read_named_files
from gateway.config.settings import Settings
from gateway.endpoints.health import State
from gateway.endpoints.identity import Identity
from gateway.pools.admission import Admission
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.runtime.background import Background
from tests.fakes.paired import paired
from tests.unit.app.configured import access
from tests.until import until

ONE, TWO, THREE = (EndpointId(f"127.0.0.1:{port}") for port in (1, 2, 3))
AT_ONE, AT_TWO, AT_THREE = (f"http://{endpoint}" for endpoint in (ONE, TWO, THREE))
CAPACITY = Capacity(max_model_len=100, kv_blocks=100, max_num_seqs=1)


def identity(model: str) -> Identity:
    return Identity((model,), (), None, 100, "0.32.0")


class World:
    """The monitors of some endpoints, and the cores they report to."""

    def __init__(self) -> None:
        self.background = Background()
        self.gone: list[EndpointId] = []
        self.admissions: dict[str, Admission] = {}
        follower: Any = SimpleNamespace(
            up=lambda *_: None,
            down=lambda _: None,
            gone=self.gone.append,
            evacuate=lambda _: None,
            expire=lambda _: None,
        )
        self.clock = asyncio.get_running_loop().time
        self.cores = Cores(self._make, follower)
        settings = Settings.model_validate({"health": {"interval": 0.05, "timeout": 0.05}})
        self.running: set[EndpointId] = set()
        """Those whose engines come and go, and run."""
        self.monitors = Monitors(
            self.cores,
            settings=lambda: settings,
            clock=self.clock,
            background=self.background,
            launched={ONE},
            runs=lambda endpoint: endpoint in self.running,
        )

    def _make(self, model: str, _root: str | None) -> Driver:
        self.admissions[model], driver = paired(AdmissionController(Policy()), self.clock)
        return driver

    def serves(self, endpoint: EndpointId, model: str) -> Admission:
        """The endpoint takes traffic for this model, one request at a time."""
        self.cores.up(endpoint, identity(model), CAPACITY)
        serving = self.cores.serves(endpoint)
        assert serving is not None
        return self.admissions[serving]

    async def stays(self, endpoint: EndpointId) -> bool:
        """Whether the endpoint is still there after several checks whether it is needed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await until(lambda: endpoint not in self.monitors)
        return endpoint in self.monitors


def admitted(admission: Admission, number: int) -> asyncio.Task[Any]:
    return asyncio.create_task(admission.admit(Arrived(RequestId(number), Demand((10,), 10))))


async def leave(waiting: asyncio.Task[Any]) -> None:
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.background.stop()
    world.cores.close()
    await world.monitors.close()


async def test_endpoints_are_those_that_are_configured(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE, AT_TWO))
    assert set(monitors) == {ONE, TWO}
    assert len(monitors) == 2
    assert monitors[ONE].launched
    assert not monitors[TWO].launched
    await until(lambda: all(monitor.probed.is_set() for monitor in monitors.values()))
    watching, client = monitors._watching[ONE], monitors._questions.client(ONE)
    monitors.follow(access(AT_TWO, AT_THREE))
    await until(lambda: set(monitors) == {TWO, THREE})
    assert world.gone == [ONE]
    await until(lambda: watching.done() and client.is_closed)


async def test_an_endpoint_is_watched_from_the_start_on(world: World) -> None:
    monitors = world.monitors
    monitors.add(ONE, access(AT_ONE)[ONE])
    await asyncio.sleep(0)
    assert not monitors[ONE].probed.is_set()
    monitors.start()
    monitors.start()
    await monitors[ONE].probed.wait()
    assert monitors[ONE].status.reason != "no probe answered yet"


async def test_one_whose_model_has_a_configured_name_reports_under_it(world: World) -> None:
    found = access(AT_ONE)[ONE]
    world.monitors.add(ONE, replace(found, model=found.model.model_copy(update={"name": "mine"})))
    world.serves(ONE, "m")
    assert world.cores.serves(ONE) == "mine"


async def test_one_that_is_for_another_model_now_reports_under_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, retold = access(AT_ONE)[ONE], list[EndpointId]()

    def follow(name: str) -> None:
        named = found.model.model_copy(update={"name": name})
        world.monitors.follow({ONE: replace(found, model=named)})

    follow("mine")
    monkeypatch.setattr(world.monitors[ONE], "retell", lambda: retold.append(ONE))
    world.serves(ONE, "m")
    follow("mine")
    assert (world.cores.serves(ONE), retold) == ("mine", [])
    follow("other")
    world.serves(ONE, "m")
    assert (world.cores.serves(ONE), retold) == ("other", [ONE])
    assert list(world.cores.drivers) == ["other"]


async def test_one_that_is_reached_in_another_way_stays_the_one_it_is(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE, api_key="one"))
    monitor, client = monitors[ONE], monitors._questions.client(ONE)
    await monitor.probed.wait()
    monitors.follow(access(f"{AT_ONE}/below", api_key="two"))
    assert dict(monitors) == {ONE: monitor}
    assert monitor.status.url == f"{AT_ONE}/below"
    assert monitors._questions.client(ONE).headers["authorization"] == "Bearer two"
    assert not client.is_closed, "a question may be under way"
    await until(lambda: client.is_closed)


async def test_one_that_is_needed_stays_until_it_is_not(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE))
    monitor, admission = monitors[ONE], world.serves(ONE, "m")
    await admitted(admission, 1)
    waiting = admitted(admission, 2)
    world.cores.down(ONE, "nobody listens there")
    monitors.follow({})
    await until(lambda: monitor.status.state is State.DRAINING)
    assert await world.stays(ONE), "a request is on it"
    admission.finish(RequestId(1), Verdict.DONE, 1)
    assert await world.stays(ONE), "somebody waits who could go nowhere else"
    await leave(waiting)
    await until(lambda: not monitors)
    assert world.gone == [ONE]
    assert world.cores.drivers == {}


async def test_nobody_looks_through_the_whole_pool_while_one_leaves(world: World, monkeypatch: Any) -> None:
    """Half of 100 endpoints leave together in a rollout: ten pictures of the pool a second for each take a core."""
    looks: list[float] = []
    look = AdmissionController.snapshot

    def noted(core: AdmissionController, now: float) -> Any:
        looks.append(now)
        return look(core, now)

    monkeypatch.setattr(AdmissionController, "snapshot", noted)
    monitors = world.monitors
    monitors.follow(access(AT_ONE))
    await admitted(world.serves(ONE, "m"), 1)
    monitors.follow({})
    await until(lambda: monitors[ONE].status.state is State.DRAINING)
    assert await world.stays(ONE)
    world.admissions["m"].finish(RequestId(1), Verdict.DONE, 1)
    await until(lambda: not monitors)
    assert not looks


@pytest.mark.parametrize(
    ("name", "reported", "alone"), [("m", "m", False), (None, "m", False), (None, "another", True)]
)
async def test_one_waits_for_its_adapters_where_another_serves_its_model(
    world: World, monkeypatch: Any, *, name: str | None, reported: str, alone: bool
) -> None:
    model = {"name": name, "endpoints": [{"url": AT_ONE}, {"url": AT_TWO}]}
    world.monitors.follow(read_named_files(Settings.model_validate({"models": [model]})).endpoints)
    first, second = world.monitors[ONE], world.monitors[TWO]
    monkeypatch.setattr(first, "_identity", identity("m"))
    assert first._alone()
    monkeypatch.setattr(second, "_identity", identity(reported))
    monkeypatch.setattr(second._health, "state", State.UP)
    assert first._alone() is alone
    assert second._alone()


async def test_one_is_not_needed_where_another_serves_its_model(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE, AT_TWO))
    admission = world.serves(ONE, "m")
    world.serves(TWO, "m")
    for endpoint in (ONE, TWO):
        world.cores.down(endpoint, "nobody listens there")
    waiting = admitted(admission, 1)
    await asyncio.sleep(0)
    monitors.follow(access(AT_TWO))
    await until(lambda: set(monitors) == {TWO})
    assert not waiting.done()
    await leave(waiting)


async def test_one_is_needed_where_the_other_has_gone_over_to_another_model(world: World) -> None:
    """What the other still has of the old model is served to its end there, but nothing new is."""
    monitors = world.monitors
    monitors.follow(access(AT_ONE, AT_TWO))
    admission = world.serves(ONE, "m")
    await admitted(admission, 1)
    world.serves(TWO, "m")
    world.cores.down(TWO, "nobody listens there")
    waiting = admitted(admission, 2)
    await asyncio.sleep(0)
    world.serves(ONE, "n")
    monitors.follow(access(AT_ONE))
    await until(lambda: monitors[TWO].status.state is State.DRAINING)
    assert await world.stays(TWO), "somebody waits who could go nowhere else"
    await leave(waiting)
    await until(lambda: set(monitors) == {ONE})


async def test_one_that_is_configured_again_before_it_has_left_stays(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE))
    monitor, admission = monitors[ONE], world.serves(ONE, "m")
    await admitted(admission, 1)
    monitors.follow({})
    await until(lambda: monitor.status.state is State.DRAINING)
    monitors.follow(access(AT_ONE))
    assert monitor.status.state is not State.DRAINING
    admission.finish(RequestId(1), Verdict.DONE, 1)
    assert await world.stays(ONE)
    assert (monitors[ONE], world.gone) == (monitor, [])
    assert monitor.status.state is not State.DRAINING


async def test_one_that_leaves_takes_work_until_those_that_come_were_probed(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE))
    monitor, admission = monitors[ONE], world.serves(ONE, "m")
    await admitted(admission, 1)
    monitors.follow(access(AT_TWO))
    coming = monitors[TWO]
    while not coming.probed.is_set():
        assert monitor.status.state is not State.DRAINING
        await asyncio.sleep(0)
    await until(lambda: monitor.status.state is State.DRAINING)
    admission.finish(RequestId(1), Verdict.DONE, 1)
    await until(lambda: set(monitors) == {TWO})


async def test_one_that_leaves_stays_while_an_answer_of_it_is_passed_on(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE))
    monitor = monitors[ONE]
    world.serves(ONE, "m")
    monitor.dispatched(RequestId(1), None)
    monitors.follow(access(AT_TWO))
    await until(lambda: monitor.status.state is State.DRAINING)
    assert monitor.status.reason == "no settings name it any more"
    await asyncio.sleep(0.05)
    assert ONE in monitors
    monitor.finished(RequestId(1))
    await until(lambda: set(monitors) == {TWO})


async def test_one_that_leaves_stays_while_its_engine_is_yet_to_be_ended(world: World) -> None:
    monitors = world.monitors
    monitors.follow(access(AT_ONE))
    world.running.add(ONE)
    monitors.follow(access(AT_TWO))
    assert await world.stays(ONE)
    assert monitors[ONE].drained
    world.running.clear()
    await until(lambda: set(monitors) == {TWO})
