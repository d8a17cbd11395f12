"""The account that kvgate keeps agrees with what a real engine holds, over a real load."""

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import httpx
import pytest

from loadtests.arrivals import Planned
from loadtests.client import Address, Record, body, exchange
from tests.conftest import Vllm
from tests.integration.kvgate import PATIENT, serving
from tests.ports import free_port

pytestmark = pytest.mark.engine


def planned(requests: int, prompt: tuple[int, int], output: tuple[int, int]) -> list[Planned]:
    """Twenty a second."""
    draw = random.Random(3)  # noqa: S311 - the same load every time
    lengths = [(draw.randint(*prompt), draw.randint(*output)) for _ in range(requests)]
    return [Planned(number, number / 20, "", 0, *both, both[1]) for number, both in enumerate(lengths)]


WORKLOAD = planned(6, (50, 150), (150, 200))
"""Busy for seconds, up to two thirds of the cache, without preemptions: a request that was preempted still needs its
blocks, and holds none."""
WARM_UP = planned(2, (100, 200), (5, 5))
"""The engine's first steps allocate, and say nothing about the others."""
SAMPLE_INTERVAL = 0.1


async def test_running_requests_and_kv_usage_agree_with_the_ledger(chat_vllm: Vllm, tmp_path: Path) -> None:
    # The real model: it is slow enough for the gauges to be read many times while it works.
    engine = chat_vllm
    patient = {**PATIENT, "KVGATE_ADMISSION__TTFT_TARGET": "none"}  # a busy machine takes its time for each
    with serving(tmp_path / "kvgate.log", free_port(), "--endpoint", engine.url, environ=patient) as kvgate:
        kvgate.wait_healthy(1)
        samples: list[Sample] = []

        async def watch() -> None:
            async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_keepalive_connections=0)) as client:
                while True:
                    before = await _account(client, kvgate.url)
                    seen = _gauges((await client.get(f"{engine.url}/metrics")).text)
                    after = await _account(client, kvgate.url)
                    samples.append(Sample(before, after, seen))
                    await asyncio.sleep(SAMPLE_INTERVAL)

        async def send(request: Planned, epoch: float) -> Record:
            record, content = Record(request, request.at), body(request, engine.model, "ledger")
            await asyncio.sleep(request.at)
            await exchange(address, address.request(content, {}), record, epoch, timeout=600)
            return record

        async def load(workload: list[Planned]) -> list[Record]:
            epoch = time.monotonic()
            return await asyncio.gather(*(send(request, epoch) for request in workload))

        address = Address.of(kvgate.url)
        await load(WARM_UP)
        watching = asyncio.create_task(watch())
        records = await load(WORKLOAD)
        assert not watching.done(), watching.exception()
        watching.cancel()
        (after,) = kvgate.state()["endpoints"]

    assert [record.loss for record in records if record.loss] == []
    assert after["kv"]["ledger"] == 0.0, "something is still reserved"
    assert after["in_flight"] == 0
    busy = [sample for sample in samples if sample.comparable]
    kv = [sample.kv_off for sample in busy]
    running = [sample.running_off for sample in busy]
    print(
        f"\n{len(busy)} samples under load; ledger off the engine's gauge by {fmean(kv):.3f} of the cache on average, "
        f"median {median(kv):.3f}; sequences by {fmean(running):.2f}, median {median(running)}"
    )
    assert len(busy) >= 10, "the load was too light to tell anything"
    assert max(sample.before["kv"] for sample in samples) > 0.3
    assert median(kv) < 0.03
    assert fmean(kv) < 0.08
    assert median(running) <= 1


@dataclass(frozen=True)
class Sample:
    """The engine's gauges, and the account as it was just before and just after they were read."""

    before: dict[str, float]
    after: dict[str, float]
    seen: dict[str, float]

    @property
    def comparable(self) -> bool:
        """Under load, and nothing just being handed over: a request that waits in the engine holds nothing there."""
        return min(self.before["kv"], self.after["kv"]) > 0.1 and self.seen["num_requests_waiting"] == 0

    @property
    def kv_off(self) -> float:
        return _outside(self.seen["kv_cache_usage_perc"], self.before["kv"], self.after["kv"])

    @property
    def running_off(self) -> float:
        return _outside(self.seen["num_requests_running"], self.before["sequences"], self.after["sequences"])


def _outside(value: float, one: float, other: float) -> float:
    """How far a value lies outside the range of two others."""
    return max(min(one, other) - value, value - max(one, other), 0.0)


async def _account(client: httpx.AsyncClient, url: str) -> dict[str, float]:
    (endpoint,) = (await client.get(f"{url}/kvgate/state")).json()["endpoints"]
    return {"kv": endpoint["kv"]["ledger"], "sequences": endpoint["sequences"]}


def _gauges(text: str) -> dict[str, float]:
    wanted = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
    return {
        name: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        for name in wanted
        if line.startswith(f"vllm:{name}{{")
    }
