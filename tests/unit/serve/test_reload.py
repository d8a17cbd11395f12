import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.assembly import moved
from engine.control import Reload
from engine.events import BecameReady
from gateway.admission.events import ResidencyPhase
from gateway.app.parent import NEWS
from gateway.config.engine import EngineSettings
from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings, ServerSettings, Settings
from gateway.pools.launcher import EngineNews
from gateway.serve.discovery import Discovery
from gateway.serve.engines import Engines
from gateway.serve.reload import Deployment
from tests.ports import free_port


def deployed(tmp_path, load, said):
    settings = Settings(
        server=ServerSettings(host="127.0.0.1", port=0),
        models=(ModelSettings(engine=EngineSettings(model=str(tmp_path), python=Path(sys.executable))),),
    )
    return Deployment(Discovery(settings), load(settings), lambda _: None, said.append)


async def test_a_reload_that_breaks_off_says_so_and_ends_what_no_gateway_knows(tmp_path, monkeypatch):
    async def breaks(self, engines, _gateways, _settings):
        self.running.append(replace(moved(engines[0], 1), name="new"))
        raise RuntimeError("a defect")

    async def cannot(*_):
        return False

    stopped = []

    async def stop(_self, engine):
        stopped.append(engine.name)

    monkeypatch.setattr(Deployment, "_go_by", cannot)
    monkeypatch.setattr(Engines, "become", breaks)
    monkeypatch.setattr(Engines, "_stop", stop)
    said, heard = [], []
    deployment = deployed(tmp_path, lambda settings: lambda *_: settings, said)
    try:
        assert await deployment.reload(Reload(), heard.append) == 1
        assert heard == said == ["The reload broke off: RuntimeError('a defect')\nWhat ran before serves on."]
        assert stopped == ["new"]
    finally:
        deployment._close()


async def test_endpoints_that_are_found_after_a_reload_failed_in_part_send_nobody_to_an_engine_that_does_not_run(
    tmp_path,
):
    deployment = deployed(tmp_path, lambda settings: lambda *_: settings, [])
    try:
        (engine,) = deployment.engines.running
        deployment.engines.running = [replace(moved(engine, 1), described="another")]
        with pytest.raises(ConfigurationError, match="reload again"):
            await deployment._discovered(deployment._discovery.settings)
    finally:
        deployment._close()


async def test_a_file_that_cannot_be_read_changes_nothing(tmp_path):
    def load(settings):
        def read(*_):
            raise OSError("no such disk")

        return read

    said = []
    deployment = deployed(tmp_path, load, said)
    try:
        assert await deployment.reload(Reload(), lambda _: None) == 2
        assert said == ["no such disk\nNothing was changed."]
    finally:
        deployment._close()


def with_workers(workers, level="info"):
    server = {"host": "127.0.0.1", "port": 0, "workers": workers}
    models = [{"endpoints": [{"url": "http://127.0.0.1:9"}]}]
    return Settings.model_validate({"server": server, "models": models, "log": {"level": level}})


async def test_workers_are_as_many_as_at_the_start_whatever_cpus_there_are_now(monkeypatch):
    settings, cpus = with_workers("auto"), {0, 1, 2}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    deployment = Deployment(Discovery(settings), lambda *_: settings, lambda _: None, lambda _: None)
    try:
        cpus.add(3)
        _, gateways = deployment._programs(deployment._read(Reload())[0])
        assert [gateway.name for gateway in gateways] == [gateway.name for gateway in deployment._gateways.running]
    finally:
        deployment._close()


class Told:
    """A supervisor that keeps what programs are told."""

    def __init__(self):
        self.told = []

    def tell(self, name, line):
        self.told.append((name, line))

    async def add(self, *_, **__):
        """It runs."""

    async def remove(self, *_, **__):
        """It has ended."""


async def test_in_a_tier_one_front_talks_of_engines_as_any_gateway_may_decide(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    at = f"127.0.0.1:{free_port()}"
    engine = {"model": "org/m", "python": "/python", "on_demand": True, "at": at}
    settings = Settings.model_validate(
        {
            "server": {"host": "127.0.0.1", "port": 0, "workers": 2, "shutdown_timeout": 0.1},
            "models": [{"name": "m", "engine": engine}],
            "tier": {"redis": "redis://h", "advertise": f"127.0.0.1:{free_port()}", "key_file": tmp_path / "key"},
        }
    )
    deployment = Deployment(Discovery(settings), lambda *_: settings, lambda _: None, lambda _: None)
    deployment.engines._supervisor = deployment.engines._attendant._supervisor = supervisor = Told()
    try:
        owner, first, second = deployment._gateways.running
        for process in (owner, first, second):
            deployment._on_event(BecameReady(process.name, 1.0))
        assert [(name, parsed(line).turn) for name, line in supervisor.told] == [("front 1", 1)]
        for process in (owner, second):
            deployment._on_news(process, f"run {at}")
        await asyncio.sleep(0)
        assert len(supervisor.told) == 1
        deployment._on_news(first, f"run {at}")
        await deployment.engines._attendant._held[at].following
        assert parsed(supervisor.told[-1][1]).phase is ResidencyPhase.UP
    finally:
        deployment._close()


def parsed(line):
    return msgspec.json.decode(line.removeprefix(NEWS), type=EngineNews)


async def test_what_a_gateway_says_that_leaves_is_no_order(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    settings = Settings.model_validate(
        {
            "server": {"host": "127.0.0.1", "port": 0},
            "models": [{"name": "m", "engine": {"model": "org/m", "python": "/python", "on_demand": True}}],
        }
    )
    deployment = Deployment(Discovery(settings), lambda *_: settings, lambda _: None, lambda _: None)
    heard = []
    monkeypatch.setattr(deployment.engines, "obey", lambda *order: heard.append(order))
    try:
        owner, front = deployment._gateways.running
        deployment._on_news(owner, "end 127.0.0.1:1")
        deployment._gateways.running = [replace(owner, name="owner #2"), front]
        deployment._on_news(owner, "end 127.0.0.1:2")
        assert heard == [("end", "127.0.0.1:1")]
    finally:
        deployment.engines.close()
        deployment._close()
