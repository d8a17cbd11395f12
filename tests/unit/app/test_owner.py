import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointDown,
    EndpointId,
    Learned,
    PolicyChanged,
    RequestId,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Load
from gateway.app.owner import Owner
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.endpoints.health import State
from gateway.endpoints.identity import Identity
from gateway.ops.metrics import MOST_MODELS, Metrics
from gateway.ops.state import UnknownEndpointError, UnknownModelError
from gateway.pools.admission import Admission
from gateway.pools.driver import Driver
from gateway.record.learned import LearnedFiles
from gateway.record.lines import Changed, Happened, Opened, Started, read
from tests.unit.app.configured import access
from tests.until import until

ONE, TWO = (EndpointId(f"127.0.0.1:{port}") for port in (1, 2))
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100)


def settings_of(**sections: Any) -> Settings:
    sections["server"] = {"state_dir": "none", **sections.get("server", {})}
    return Settings.model_validate(sections)


@asynccontextmanager
async def owner_of(settings: Settings, **how: Any) -> AsyncIterator[Owner]:
    """An owner of two endpoints, at which nobody listens; not started yet."""
    nothing = dict.fromkeys(("up", "down", "gone", "evacuate", "expire"), lambda *_: None)
    follower: Any = SimpleNamespace(**nothing)
    endpoints = access(f"http://{ONE}", f"http://{TWO}")
    asker, metrics = (lambda _: Admission(lambda _: None)), Metrics("0")
    owner = Owner(settings, endpoints, follower, clock=time.monotonic, asker=asker, metrics=metrics, **how)
    try:
        yield owner
    finally:
        await owner.stop()


def serves(owner: Owner, endpoint: EndpointId, model: str = "m", root: str | None = None) -> Driver:
    owner.cores.up(endpoint, Identity((model,), (), root, 1000, "0.32.0"), CAPACITY)
    return owner.cores.drivers[model]


def shown(owner: Owner) -> bytes:
    return owner._metrics.exposition()


def has(owner: Owner, metric: bytes) -> bool:
    return metric in shown(owner)


def admission_to(driver: Driver) -> Admission:
    """The one that asks it."""
    admission = driver._asker
    assert isinstance(admission, Admission)
    admission.decider = driver
    return admission


async def answered(driver: Driver, tokens: int) -> None:
    """A request that is answered with so many tokens."""
    request, admission = RequestId(tokens), admission_to(driver)
    await admission.admit(Arrived(request, Demand((100,), 500)))
    admission.finish(request, Verdict.DONE, tokens)


def kept(folder: Path) -> list[Path]:
    """The files of what was learned."""
    return list(folder.rglob("*.json"))


async def test_an_endpoint_is_drained_and_taken_back_by_its_id_alone() -> None:
    async with owner_of(settings_of()) as owner:
        await owner.drain(ONE)
        assert [monitor.status.state for monitor in owner.monitors.values()] == [State.DRAINING, State.STARTING]
        await owner.undrain(ONE)
        assert owner.monitors[ONE].status.state is not State.DRAINING
        act: Callable[[str], Awaitable[None]]
        for act in (owner.drain, owner.undrain):
            with pytest.raises(UnknownEndpointError):
                await act("127.0.0.1:9")


async def test_an_adapter_is_given_to_each_endpoint_of_a_model() -> None:
    async with owner_of(settings_of()) as owner:
        with pytest.raises(UnknownModelError):
            await owner.give("m", "a", "/a")
        owner.cores.up(ONE, Identity(("m",), (), None, 1000, "0.32.0"), CAPACITY)
        await owner.give("m", "a", "/a")
        assert owner.monitors[ONE].adapters.wanted == {"a": "/a"}
        await owner.give("m", "a", None)
        assert owner.monitors[ONE].adapters.wanted == {}


@pytest.mark.parametrize("models", [1, 2])
async def test_an_adapter_is_given_to_one_that_was_not_reached_yet_unless_it_may_be_of_another_model(
    models: int,
) -> None:
    some = [{"endpoints": [{"url": f"http://h:{port}"}]} for port in range(models)]
    async with owner_of(settings_of(models=some)) as owner:
        serves(owner, ONE)
        await owner.give("m", "a", "/a")
        assert owner.monitors[ONE].adapters.wanted == {"a": "/a"}
        assert owner.monitors[TWO].adapters.wanted == ({"a": "/a"} if models == 1 else {})


async def test_what_it_decided_is_of_every_endpoint_and_every_model() -> None:
    async with owner_of(settings_of()) as owner:
        driver = serves(owner, TWO)
        await admission_to(driver).admit(Arrived(RequestId(1), Demand((100,), 500)))
        decided = await owner.decided()
        assert [(endpoint.id, endpoint.model, endpoint.in_flight) for endpoint in decided.endpoints] == [
            (ONE, None, 0), (TWO, "m", 1)
        ]  # fmt: skip
        assert [(queue.model, queue.depth) for queue in decided.queues] == [("m", 0)]
        ((model, load),) = owner.loads().items()
        assert isinstance(load, Load)
        assert (model, load.waiting, load.sequences, [name for name, _ in load.usage]) == ("m", 0, 1, [TWO])


async def test_an_engine_that_renames_its_model_makes_no_labels_without_end() -> None:
    async with owner_of(settings_of(health={"interval": 0.01})) as owner:
        sampling = asyncio.create_task(owner._sample())
        for number in range(MOST_MODELS + 2):
            serves(owner, ONE, f"m{number}")
            name = f'kvgate_sequences_over_time_count{{model="m{number}"}}'.encode()
            await until(functools.partial(has, owner, name))
        sampling.cancel()
        assert shown(owner).count(b"kvgate_sequences_over_time_count{") == MOST_MODELS


async def test_the_endpoints_are_watched_once_it_is_started() -> None:
    async with owner_of(settings_of(), launched={TWO: None}) as owner:
        assert [monitor.launched for monitor in owner.monitors.values()] == [False, True]
        await asyncio.sleep(0)
        assert not any(monitor.probed.is_set() for monitor in owner.monitors.values())
        owner.start()
        await until(lambda: all(monitor.probed.is_set() for monitor in owner.monitors.values()))
        owner.go_by(settings_of(), access(f"http://{TWO}"))
        await until(lambda: set(owner.monitors) == {TWO})


async def test_each_core_goes_by_the_policy_in_force_and_the_record_says_since_when(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    before = settings_of(admission={"event_log": file, "kv_high": 0.9})
    after = settings_of(admission={"event_log": file, "kv_high": 0.95, "kv_low": 0.5})
    async with owner_of(before) as owner:
        owner.start()
        serves(owner, ONE)
        owner.go_by(before, access(f"http://{ONE}", f"http://{TWO}"))
        for _ in range(2):
            owner.go_by(after, access(f"http://{ONE}", f"http://{TWO}"))
        serves(owner, TWO, "n")
    start, opened, _, changed, told, later, _ = read(file)
    assert isinstance(start, Started)
    assert start.admission["kv_high"] == 0.9
    assert "event_log" not in start.admission
    assert (opened, later) == (Opened(1, "m"), Opened(2, "n"))
    assert isinstance(changed, Changed)
    assert (changed.admission["kv_high"], changed.admission["kv_low"]) == (0.95, 0.5)
    assert isinstance(told, Happened)
    event = told.read()
    assert isinstance(event, PolicyChanged)
    assert (told.pool, event.policy.kv_high) == (1, 0.95)


async def test_a_record_that_cannot_be_written_is_a_matter_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"admission\.event_log = .*No such file"):
        async with owner_of(settings_of(admission={"event_log": tmp_path / "none" / "f"})):
            pass


async def test_what_one_learned_the_next_one_begins_with(tmp_path: Path) -> None:
    settings = settings_of(server={"state_dir": tmp_path})
    async with owner_of(settings) as owner:
        driver = serves(owner, ONE, root="org/m")
        await answered(driver, 7)
        await answered(driver, 9)
        serves(owner, TWO, "untried")
    assert len(kept(tmp_path)) == 1
    async with owner_of(settings) as owner:
        assert serves(owner, ONE, root="org/m").controller.learned().everything == (7, 9)
        assert serves(owner, TWO, "m of another root", root="org/n").controller.learned().everything == ()


async def test_nothing_is_kept_where_nothing_is_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    for state_dir, files in (("none", 0), ("auto", 1)):
        async with owner_of(settings_of(server={"state_dir": state_dir})) as owner:
            await answered(serves(owner, ONE), 7)
        assert len(kept(tmp_path)) == files


async def test_what_is_learned_is_kept_while_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.owner.KEEP_INTERVAL", 0.01)
    async with owner_of(settings_of(server={"state_dir": tmp_path})) as owner:
        owner.start()
        driver = serves(owner, ONE)
        await answered(driver, 7)
        files = LearnedFiles(tmp_path)
        await until(lambda: (learned := files.read("m", None)) is not None and learned.everything == (7,))
        await answered(driver, 9)
        await until(lambda: (learned := files.read("m", None)) is not None and learned.everything == (7, 9))


async def test_what_was_learned_of_a_model_that_leaves_meanwhile_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves while a slow disk has what was learned of another one."""
    write = LearnedFiles.write
    async with owner_of(settings_of(server={"state_dir": tmp_path})) as owner:
        await answered(serves(owner, ONE, "m"), 7)
        await answered(serves(owner, TWO, "n", root="org/n"), 9)
        loop = asyncio.get_running_loop()

        async def leave() -> None:
            serves(owner, TWO, "o")

        def written(files: LearnedFiles, model: str, root: str | None, learned: Learned) -> None:
            if model == "m":
                asyncio.run_coroutine_threadsafe(leave(), loop).result()
            write(files, model, root, learned)

        monkeypatch.setattr(LearnedFiles, "write", written)
        await owner._write_learned()
    learned = LearnedFiles(tmp_path).read("n", "org/n")
    assert learned is not None
    assert learned.everything == (9,)


async def test_once_it_has_stopped_nothing_of_it_runs_any_more() -> None:
    async with owner_of(settings_of(admission={"queue": {"ttl": 0.01}})) as owner:
        owner.start()
        driver = serves(owner, ONE)
        driver.handle(EndpointDown(ONE, "nobody listens there"))
        driver.handle(Arrived(RequestId(1), Demand((100,), 500)))
        clients = [owner.monitors._questions.client(endpoint) for endpoint in (ONE, TWO)]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(client.is_closed for client in clients)
    assert driver._wake_timer is not None
    assert driver._wake_timer.cancelled()


async def test_figures_of_many_tenants_are_read_beside_the_loop() -> None:
    async with owner_of(settings_of()) as owner:
        names = [f"key {number}" for number in range(2000)]
        owner._metrics.know_tenants(names)
        for name in names:
            for outcome in (Outcome.COMPLETED, Outcome.QUEUE_FULL, Outcome.CLIENT_CLOSED):
                tenant = owner._metrics.tenant(name)
                assert tenant is not None
                tenant.ended(outcome)
        for read_all in (functools.partial(owner.exposition, openmetrics=False), owner.figures):
            of_all, of_loop = time.process_time(), time.thread_time()
            await read_all()
            assert time.thread_time() - of_loop < (time.process_time() - of_all) / 4
