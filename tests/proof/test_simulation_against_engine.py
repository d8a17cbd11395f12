"""The simulation, calibrated on one workload on a real vLLM, predicts others it has not seen."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import aiohttp
import pytest

from gateway.endpoints.exposition import parse
from gateway.simulation import workload
from gateway.simulation.compare import capacity
from gateway.simulation.contenders import direct
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request, Workload
from loadtests.processes import on_cores, split_cores
from tests.conftest import Vllm, VllmFactory
from tests.proof.calibration import Answer, calibrated, in_phases

pytestmark = [pytest.mark.engine, pytest.mark.proof]

TRACES = Path(__file__).parents[2] / "loadtests" / "traces"
VOCABULARY = range(100, 7900)
MACHINE = Machine(
    kv_tokens=255 * 32,  # of 256 blocks one is the engine's own
    block_size=32,
    max_model_len=2048,
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    step=StepTime(0.004, 0.0001, 0.00002, 1e-8),
)
FLAGS = {
    "--max-num-seqs": "128",
    "--max-num-batched-tokens": "2048",
    # First token and end are all that is measured: a thousand events a second would be a load of their own.
    "--stream-interval": "100000",
    "--distributed-executor-backend": "mp",  # as it comes
}
TOLERANCE = 0.2
FEW = 10
"""Preemptions that two runs of one workload differ by."""
REPEATS = 3


@dataclass(frozen=True)
class Measured:
    answers: list[Answer]
    preemptions: float
    throughput: float


async def measure(engine: Vllm, offered: Workload, seed: int) -> Measured:
    """Play a workload open-loop against the engine, with prompts that share nothing."""
    random = Random(seed)  # noqa: S311 - the same prompts every time
    prompts = [random.choices(VOCABULARY, k=request.prompt) for request in offered]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before = await preemptions(session, engine)
        start = asyncio.get_running_loop().time() + 0.1
        answers = await asyncio.gather(
            *(
                complete(session, engine, request, prompt, start)
                for request, prompt in zip(offered, prompts, strict=True)
            )
        )
        after = await preemptions(session, engine)
    tokens = sum(request.output for request in offered)
    return Measured(answers, after - before, tokens / max(answer.ended_at for answer in answers))


async def complete(
    session: aiohttp.ClientSession, engine: Vllm, request: Request, prompt: list[int], start: float
) -> Answer:
    loop = asyncio.get_running_loop()
    body = {
        "model": engine.model,
        "prompt": prompt,
        "max_tokens": request.output,
        "ignore_eos": True,
        "stream": True,
    }
    await asyncio.sleep(start + request.arrival - loop.time())
    first = None
    async with session.post(f"{engine.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if first is None and line.startswith(b"data:"):
                first = loop.time() - start
    assert first is not None
    return Answer(first, loop.time() - start)


async def preemptions(session: aiohttp.ClientSession, engine: Vllm) -> float:
    async with session.get(f"{engine.url}/metrics") as response:
        return parse(await response.read()).preemptions or 0.0


def trace(name: str, requests: int, prompts: float, outputs: float) -> Workload:
    """As much of a trace, scaled to what the machine can serve."""
    offered = workload.load(TRACES / f"azure_llm_2023_{name}.csv.gz", requests)
    return workload.fitted(workload.scaled(offered, prompts, outputs), MACHINE.max_model_len, MACHINE.kv_tokens)


def long_outputs() -> Workload:
    random = Random(11)  # noqa: S311 - the same load every time
    return tuple(Request(n, random.randint(100, 200), random.randint(300, 600)) for n in range(150))


LEARNED = in_phases(trace("conv", 300, 0.1, 2.0), (1.5, 4.0, 6.0))
"""Nearly idle, then some twenty at once, and never overloaded."""
UNSEEN = {"long outputs": long_outputs(), "long prompts": trace("code", 250, 0.25, 4.0)}
OVERLOAD = 1.5
"""Times what the calibrated model says the engine can do of them: machines differ, and preemptions are to be seen."""


@pytest.fixture
def engine(vllm: VllmFactory) -> Iterator[Vllm]:
    """A vLLM with its cores to itself: the client has the last one."""
    of_engine, last = split_cores()
    with on_cores(of_engine):
        started = vllm(args=FLAGS, tag="simulation")
    with on_cores({last}):
        yield started


async def test_workloads_the_model_has_not_seen_are_predicted(engine: Vllm) -> None:
    await measure(engine, LEARNED[:20], seed=0)  # the first steps allocate, and say nothing about the others
    learned = await measure(engine, LEARNED, seed=1)
    machine = calibrated(LEARNED, MACHINE, learned.answers)
    print(f"\ncalibrated: {machine.step}")
    found = simulate(LEARNED, machine, direct())
    print(report("learned", learned.preemptions, found.preemptions, learned.throughput, found.throughput))
    misses = []
    for name, shape in UNSEEN.items():
        offered = workload.at_rate(shape, OVERLOAD * capacity(shape, machine).requests_per_second)
        real = [await measure(engine, offered, seed=10 + repeat) for repeat in range(REPEATS)]
        counted = median(each.preemptions for each in real)
        speed = median(each.throughput for each in real)
        said = simulate(offered, machine, direct())
        print(report(name, counted, said.preemptions, speed, said.throughput))
        if abs(said.preemptions - counted) > max(FEW, TOLERANCE * counted):
            misses.append(f"{name}: {said.preemptions} preemptions predicted, {counted:.0f} counted")
        if abs(said.throughput - speed) > TOLERANCE * speed:
            misses.append(f"{name}: {said.throughput:.0f} tokens/s predicted, {speed:.0f} measured")
    assert not misses


def report(name: str, counted: float, predicted: float, speed: float, said: float) -> str:
    return f"{name}: preemptions {predicted:.0f} for {counted:.0f}, tokens/s {said:.0f} for {speed:.0f}"
