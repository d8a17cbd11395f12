"""What a front costs beside a gateway alone: CPU of a request in real processes, relay and all.

    python -m tests.proof.front_cost [--rounds 3] [--seconds 15]

One gateway, then two fronts with as much for each of them as the one had, in turn. CPU is that of the processes under
load, less what they take with nothing to do; so it says nothing of monitors and scrapes, which the owner has. How much
more two fronts carry on two cores is twice the CPU of a request alone, over that of a front.
"""

import argparse
import asyncio
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from loadtests.processes import cpu_seconds
from loadtests.results import Document, Target
from loadtests.run import Bench, Options
from loadtests.scenario import Flow, Phase, Request, Scenario
from tests.integration.workers import Workers
from tests.proof.workers import running

FRONTS = 2
ENGINE = ("--step-seconds=0.02", "--num-blocks=100000", "--max-num-seqs=4096", "--max-batched-tokens=100000")
IDLE = 5.0
"""Seconds for which what nothing costs is measured."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one kind."""

    name: str
    output: int
    rate: float
    """Requests per second for each front."""


SHAPES = (Shape("streams of 250 tokens", 250, 10.0), Shape("streams of one token", 1, 60.0))


async def measure(workers: Workers, shape: Shape, fronts: int, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU of a request: in a front, or the gateway that is alone, and in the owner."""
    alone = fronts == 1
    carriers = [workers.kvgate.process.pid] if alone else workers.fronts()
    owner = None if alone else workers.owner()

    def spent() -> tuple[float, float]:
        return sum(map(cpu_seconds, carriers)), 0.0 if owner is None else cpu_seconds(owner)

    scenario = Scenario(
        shape.name, (Phase(seconds),), flows=(Flow("all", 1.0, (Request(prompt=200, output=shape.output),)),)
    )
    options = Options((1.0,), 1, 1, drain=60.0, interval=60.0, keep_requests=False, keys={}, flow_header="x-flow")
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session, Bench(session, 1, options) as bench:
        target = Target("kvgate", workers.url, "fake", tuple(f"{url}/metrics" for url in workers.urls))
        document = Document(shape.name, {}, scenario, shape.rate * fronts, [target])
        await bench.measure(target, document, 1.0, 0, None)  # so that both are warm
        start, began = spent(), _now()
        await asyncio.sleep(IDLE)
        end = spent()
        idle = [(after - before) / (_now() - began) for before, after in zip(start, end, strict=True)]
        start, began = spent(), _now()
        measured = await bench.measure(target, document, 1.0, 1, None)
        end, took = spent(), _now() - began
    whole = measured.figures["in SLO"] + measured.figures["late"]
    if whole < measured.figures["offered"]:
        raise RuntimeError(f"{measured.reasons} of {shape.name}")
    carried, decided = (
        (after - before - each * took) / whole * 1e6 for before, after, each in zip(start, end, idle, strict=True)
    )
    return carried, decided


def _now() -> float:
    return asyncio.get_running_loop().time()


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="kvgate-front-cost-") as folder:
        for _ in range(arguments.rounds):
            for fronts in (1, FRONTS):
                with running(fronts, Path(folder), engine=ENGINE) as workers:
                    for shape in SHAPES:
                        spent = await measure(workers, shape, fronts, arguments.seconds)
                        found.setdefault((shape.name, fronts), []).append(spent)
    print(f"Python {platform.python_version()}, {platform.machine()}; us of CPU a request: least to most, median")
    for shape in SHAPES:
        alone, front = found[shape.name, 1], found[shape.name, FRONTS]
        columns = {
            "alone": [spent for spent, _ in alone],
            "front": [spent for spent, _ in front],
            "owner": [spent for _, spent in front],
        }
        for name, rounds in columns.items():
            print(f"{shape.name:22} {name}: {min(rounds):.0f} to {max(rounds):.0f}, {median(rounds):.0f}")
        ratio = median(columns["front"]) / median(columns["alone"])
        print(f"{shape.name:22} a front is {ratio:.2f} of alone; two carry {FRONTS / ratio:.2f} times as much")


if __name__ == "__main__":
    asyncio.run(main())
