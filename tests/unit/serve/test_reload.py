import asyncio
import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from engine.assembly import moved
from engine.control import Reload
from gateway.config.engine import EngineSettings
from gateway.config.settings import ModelSettings, ServerSettings, Settings
from gateway.serve.discovery import Discovery
from gateway.serve.reload import Deployment, _other


def deployed(tmp_path, load, said):
    settings = Settings(
        server=ServerSettings(host="127.0.0.1", port=0),
        models=(ModelSettings(engine=EngineSettings(model=str(tmp_path), python=Path(sys.executable))),),
    )
    return Deployment(Discovery(settings), load(settings), lambda _: None, said.append)


async def test_a_reload_that_breaks_off_says_so_and_ends_what_no_gateway_knows(tmp_path, monkeypatch):
    async def breaks(self, _settings, engines, _gateway):
        self.engines.append(replace(moved(engines[0], 1), name="new"))
        raise RuntimeError("a defect")

    stopped = []

    async def stop(_self, engine):
        stopped.append(engine.name)

    monkeypatch.setattr(Deployment, "_change", breaks)
    monkeypatch.setattr(Deployment, "_stop", stop)
    said, heard = [], []
    deployment = deployed(tmp_path, lambda settings: lambda *_: settings, said)
    try:
        assert await deployment.reload(Reload(), heard.append) == 1
        assert heard == said == ["The reload broke off: RuntimeError('a defect')\nWhat ran before serves on."]
        assert stopped == ["new"]
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
        assert [gateway.name for gateway in gateways] == [gateway.name for gateway in deployment._gateways]
    finally:
        deployment._close()


class NextOwnerFails:
    """A supervisor of a gateway's processes, where the next owner does not start."""

    def __init__(self):
        self.left = []

    def changing(self):
        return contextlib.nullcontext()

    def gave_up(self, _name):
        return False

    async def add(self, program):
        return "The event log cannot be written." if program.name == "owner #2" else None

    async def remove(self, name, by=None):
        for _ in range(1 if name == "owner" else 5):  # a front serves its connections first
            await asyncio.sleep(0)
        self.left.append(name)


async def test_where_the_next_owner_does_not_start_it_says_why_and_the_fronts_leave_all_the_same():
    said = []
    before, after = with_workers(2, level="info"), with_workers(2, level="debug")
    deployment = Deployment(Discovery(before), lambda *_: after, lambda _: None, said.append)
    deployment._supervisor = supervisor = NextOwnerFails()
    try:
        assert await deployment.reload(Reload(), lambda _: None) == 1
        why = "The new owner #2 does not start. The event log cannot be written.\nWhat ran before serves on."
        assert said[-1] == why
        assert supervisor.left == ["owner", "front 1", "front 2"]
        assert [gateway.name for gateway in deployment._gateways] == ["owner", "front 1 #2", "front 2 #2"]
    finally:
        deployment._close()


def test_a_gateway_and_its_successor_have_names_of_their_own():
    assert [_other("gateway"), _other(_other("gateway")), _other("front 2")] == ["gateway #2", "gateway", "front 2 #2"]
