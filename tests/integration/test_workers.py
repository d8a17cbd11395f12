"""`kvgate serve --workers`: an owner and its fronts as processes, killed, reloaded and stopped under load."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clock import unhindered
from tests.integration.kvgate import serving
from tests.integration.load import Load
from tests.integration.relaying import CHAT, body, events, fake_processes
from tests.integration.workers import Workers, configure
from tests.ports import free_port
from tests.unit.engine.processes import descendants, eventually
from tests.until import until

pytestmark = pytest.mark.slow


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "kvgate.yaml"
    with fake_processes(2, "--step-seconds=0.005") as fakes:
        urls = [url for url, _ in fakes]
        configure(file, urls[:1])
        with serving(tmp_path / "kvgate.log", free_port(), "--config", str(file)) as kvgate:
            kvgate.wait_healthy(1)
            made = Workers(kvgate, file, urls)
            assert eventually(lambda: len(made.fronts()) == 2 and kvgate.log.read_text().count('"listening"') == 2)
            yield made


async def test_an_owner_killed_again_and_again_costs_nobody_an_answer(workers: Workers) -> None:
    async with Load(workers.url) as load:
        for _ in range(3):
            before = workers.owner()
            os.kill(before, signal.SIGKILL)
            killed = unhindered()
            await load.more(20)
            assert await asyncio.to_thread(eventually, workers.owned_by_another_than(before))
            assert unhindered() - killed < 10
    assert load.failures == []
    assert await asyncio.to_thread(eventually, lambda: workers.in_flight() == 0)


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits only to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_front_killed_breaks_its_own_connections_alone(workers: Workers) -> None:
    streams = 4

    async def stream(client: httpx.AsyncClient) -> bool:
        """Whether it was served to its end."""
        try:
            answer = await client.post(CHAT, json=body(tokens=1500, stream=True))
        except httpx.TransportError:
            return False
        return events(answer.text)[-1] == "data: [DONE]"

    async with httpx.AsyncClient(base_url=workers.url, timeout=60) as client:
        running = [asyncio.create_task(stream(client)) for _ in range(streams)]
        assert await asyncio.to_thread(eventually, lambda: workers.in_flight() == streams)
        victim = workers.fronts()[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: ended(victim))
        others = [asyncio.create_task(stream(client)) for _ in range(10)]
        assert await asyncio.to_thread(
            eventually, lambda: len(workers.fronts()) == 2 and victim not in workers.fronts()
        )
        going = [task for task in running if not task.done()]  # its own broke long before its successor came
        assert all(await asyncio.gather(*going)), "those of the other front go on"
        assert all(await asyncio.gather(*others)), (
            "who comes after it is served by the other, or waits for its successor"
        )
    assert await asyncio.to_thread(eventually, lambda: workers.in_flight() == 0), "what it had is free"


async def test_settings_and_endpoints_change_under_load(workers: Workers) -> None:
    def reload() -> str:
        command = [sys.executable, "-m", "gateway", "reload"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    async with Load(workers.url) as load:
        before = workers.owner(), workers.fronts()
        configure(workers.file, workers.urls)
        assert "changed models" in await asyncio.to_thread(reload)
        await asyncio.to_thread(workers.kvgate.wait_healthy, 2)
        assert (workers.owner(), workers.fronts()) == before, "all of it changes live"
        await load.more(50)
        configure(workers.file, workers.urls[1:])
        await asyncio.to_thread(reload)
        assert await asyncio.to_thread(eventually, lambda: len(workers.kvgate.healthy()) == 1)
        await load.more(50)
        configure(workers.file, workers.urls, counting={"threads": 3})
        said = await asyncio.to_thread(reload)
        assert "takes over from owner" in said
        after = workers.owner(), workers.fronts()
        assert before[0] != after[0]
        assert not {*before[1]} & {*after[1]}
        await load.more(50)
    assert load.failures == []


async def test_sigterm_lets_every_stream_finish(workers: Workers) -> None:
    async with httpx.AsyncClient(base_url=workers.url, timeout=60) as client:
        running = [asyncio.create_task(client.post(CHAT, json=body(tokens=300, stream=True))) for _ in range(6)]
        assert await asyncio.to_thread(eventually, lambda: workers.in_flight() == 6)
        workers.kvgate.process.send_signal(signal.SIGTERM)
        for answer in await asyncio.gather(*running):
            assert events(answer.text)[-1] == "data: [DONE]"
    assert await asyncio.to_thread(workers.kvgate.process.wait, 20) == 0
    assert descendants(workers.kvgate.process.pid) == []
