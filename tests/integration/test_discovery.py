"""Endpoints that come and go under load: by DNS, by SRV records, by a file. Not one request may fail."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.fakes.name_server import NameServer
from tests.integration.kvgate import serving
from tests.integration.load import Load
from tests.integration.relaying import CHAT, body, fake_processes
from tests.ports import free_port
from tests.unit.engine.processes import eventually

pytestmark = pytest.mark.slow

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


class Engines:
    """Fakes on one port of several addresses, and what says which of them are there."""

    def __init__(self, folder, names, kind, port):
        self.kind = kind
        self.names = names
        self.file = folder / "engines.json"
        self.port = port

    @property
    def source(self):
        asked = {"nameserver": self.names.address, "interval": 0.2}
        return {
            "dns": {"dns": f"http://vllm.test:{self.port}", **asked},
            "srv": {"srv": "_vllm._tcp.test", **asked},
            "file": {"file": str(self.file)},
        }[self.kind]

    def are(self, *hosts):
        self.names.records = {
            ("vllm.test.", "A"): [*hosts],
            ("_vllm._tcp.test.", "SRV"): [f"0 0 {self.port} {host}." for host in hosts],
        }
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([f"http://{host}:{self.port}" for host in hosts]))
        new.replace(self.file)


class Running:
    """A kvgate in front of them, and its configuration."""

    def __init__(self, kvgate, engines, file, workers):
        self.kvgate = kvgate
        self.url = kvgate.url
        self.engines = engines
        self.file = file
        self.workers = workers

    def configure(self, **sections):
        self.file.write_text(yaml.safe_dump(configuration(self.engines, self.workers, **sections)))

    async def has(self, *hosts):
        """Wait until exactly these take traffic."""

        def there():
            with contextlib.suppress(httpx.TransportError):  # a busy machine
                state = self.kvgate.state()["endpoints"]
                return {urlsplit(each["url"]).hostname for each in state} == {*hosts} and all(
                    each["healthy"] for each in state
                )
            return False

        deadline = time.monotonic() + 60
        while not await asyncio.to_thread(there):
            assert time.monotonic() < deadline, (hosts, self.kvgate.log.read_text()[-4000:])
            await asyncio.sleep(0.1)  # asked without rest, it takes a third of what the clients do


def configuration(engines, workers, **sections):
    model = {"discover": [engines.source], "tokenizer": "/nonexistent"}
    server = {"workers": workers, "state_dir": "none", **sections.pop("server", {})}
    rest = {"health": {"interval": 0.2}, "admission": {"ttft_target": None}}
    return {"server": server, "models": [model], **rest, **sections}


@pytest.fixture
async def running(tmp_path, monkeypatch):
    """Starts a kvgate that looks for its endpoints this way."""
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    names, port = NameServer(), free_port()
    async with names.serving() as names.address, contextlib.AsyncExitStack() as stack:

        async def start(kind, workers, first):
            options = ("--port", str(port), "--step-seconds=0.005")
            for host in HOSTS:
                stack.enter_context(fake_processes(1, "--host", host, *options))
            engines = Engines(tmp_path, names, kind, port)
            engines.are(*first)
            file = tmp_path / "kvgate.yaml"
            file.write_text(yaml.safe_dump(configuration(engines, workers)))
            # The name server answers in this loop, so it must not wait for the end of kvgate either.
            served = serving(tmp_path / "kvgate.log", free_port(), "--config", str(file))
            kvgate = await asyncio.to_thread(served.__enter__)
            stack.push_async_callback(asyncio.to_thread, served.__exit__, None, None, None)
            await asyncio.to_thread(eventually, kvgate.healthy if first else lambda: answers(kvgate.url), 30)
            return Running(kvgate, engines, file, workers)

        yield start


def answers(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/livez").status_code == httpx.codes.OK
    return False


@pytest.mark.parametrize(("kind", "workers", "changes"), [("dns", 1, 4), ("dns", 2, 12), ("file", 1, 4), ("srv", 2, 5)])
async def test_endpoints_come_and_go_and_no_request_fails(running, kind, workers, changes):
    chance = random.Random(f"{kind}{workers}")  # noqa: S311 - the same changes each time
    there = HOSTS[:1]
    kvgate = await running(kind, workers, there)
    await kvgate.has(*there)
    async with Load(kvgate.url) as load:
        for _ in range(changes):
            there = chance.choice([some for some in subsets() if some != there])
            kvgate.engines.are(*there)
            await kvgate.has(*there)
            await load.more(8)
    assert load.failures == []


def subsets():
    return [[host for bit, host in enumerate(HOSTS) if chosen >> bit & 1] for chosen in range(1, 2 ** len(HOSTS))]


async def test_a_request_waits_for_the_first_engine_that_is_found(running):
    kvgate = await running("dns", 1, [])
    async with httpx.AsyncClient(timeout=60) as client:
        asked = asyncio.create_task(client.post(f"{kvgate.url}{CHAT}", json=body(tokens=5)))
        lobby = asyncio.create_task(client.get(f"{kvgate.url}/readyz"))
        assert (await lobby).status_code == httpx.codes.SERVICE_UNAVAILABLE
        kvgate.engines.are(HOSTS[0])
        assert (await asked).status_code == httpx.codes.OK


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_beside_it_keeps_what_was_found_and_goes_by_another_source(running, workers):
    kvgate = await running("dns", workers, HOSTS[:2])
    await kvgate.has(*HOSTS[:2])
    async with Load(kvgate.url) as load:
        kvgate.configure(server={"max_body_bytes": 100_000})
        code = await asyncio.to_thread(reload)
        assert code == 0
        await kvgate.has(*HOSTS[:2])
        kvgate.engines.are(HOSTS[1])
        await kvgate.has(HOSTS[1])
        await load.more(10)
        kvgate.engines.kind = "file"
        kvgate.engines.are(HOSTS[1], HOSTS[2])
        kvgate.configure()
        assert await asyncio.to_thread(reload) == 0
        await kvgate.has(HOSTS[1], HOSTS[2])
        await load.more(10)
        kvgate.engines.names.silent = True
        kvgate.engines.are(HOSTS[2])
        await kvgate.has(HOSTS[2])
        await load.more(10)
    assert load.failures == []


def reload():
    command = [sys.executable, "-m", "gateway", "reload"]
    return subprocess.run(command, capture_output=True, env=dict(os.environ), timeout=30, check=False).returncode
