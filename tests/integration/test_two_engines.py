"""Two engines launched by kvgate, one of them killed under load."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
import yaml

from engine.process import free_port
from loadtests.streaming import Outcome, stream_completion
from loadtests.workload import Workload
from tests.integration.kvgate import Kvgate, serving

pytestmark = pytest.mark.engine

START_TIMEOUT = 240.0
WORKLOAD = Workload(requests=80, rate=20.0, prompt_tokens=(50, 150), output_tokens=(200, 400))
KILL_AT = 2.0
"""Seconds into the load: both engines are busy, and half of the requests are still to come."""


async def test_kill_9_of_one_engine_costs_only_the_streams_that_had_started_on_it(
    random_model: Path, tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "kvgate.yaml"
    engine = {
        "model": str(random_model),
        "replicas": 2,
        "args": ["--max-model-len=2048", "--block-size=32", "--num-gpu-blocks-override=256", "--enforce-eager"],
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    config.write_text(yaml.safe_dump({"models": [{"name": "random", "engine": engine}]}))
    with serving(tmp_path / "kvgate.log", port, "--config", str(config)) as kvgate:
        first, second = await asyncio.to_thread(kvgate.wait_healthy, 2, START_TIMEOUT)
        outcomes, seen_healthy = await _load(kvgate, first)

        started_first = [o for o in outcomes if o.loss and o.events]
        assert [o.loss for o in outcomes if o.loss and not o.events] == [], "a request failed that had not started"
        assert {o.loss for o in started_first} <= {"error event upstream_error"}, Counter(o.loss for o in started_first)
        assert started_first, "nothing was on the engine when it died: the test tells nothing"
        assert [second] in seen_healthy, "the dead engine went on taking traffic"

        healthy = await asyncio.to_thread(kvgate.wait_healthy, 2, START_TIMEOUT)
        assert sorted(healthy) == sorted([first, second])
        state = kvgate.state()
        assert all(endpoint["kv"]["ledger"] == 0.0 and endpoint["in_flight"] == 0 for endpoint in state["endpoints"])
        answered = {await _answered_by(kvgate) for _ in range(8)}
    assert answered == {200}


async def _load(kvgate: Kvgate, victim: str) -> tuple[list[Outcome], list[list[str]]]:
    seen_healthy: list[list[str]] = []

    async def watch() -> None:
        while True:
            seen_healthy.append(await asyncio.to_thread(kvgate.healthy))
            await asyncio.sleep(0.1)

    async def kill() -> None:
        await asyncio.sleep(KILL_AT)
        os.kill(_listener(urlsplit(victim).port or 0), signal.SIGKILL)

    watching, killing = asyncio.create_task(watch()), asyncio.create_task(kill())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        epoch = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(
            *(stream_completion(session, kvgate.url, "random", arrival, epoch) for arrival in WORKLOAD.arrivals(seed=5))
        )
    await killing
    watching.cancel()
    return list(outcomes), seen_healthy


def _listener(port: int) -> int:
    """The process whose command line asks for this port: vLLM's API server, not its guard."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(port).encode() in words and not any(word.endswith(b"guard.py") for word in words):
                return int(process.name)
    raise AssertionError(f"nobody serves port {port}")


async def _answered_by(kvgate: Kvgate) -> int:
    body = {"model": "random", "prompt": [101, 102, 103], "max_tokens": 2}
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(f"{kvgate.url}/v1/completions", json=body)).status_code
