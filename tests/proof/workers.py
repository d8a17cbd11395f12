"""Several fronts and their owner, as processes under load: beside one gateway, and while some of them are killed.

    python -m tests.proof.workers [--seconds 300] [--only overload fronts owner] [--out FILE]

Two fake vLLMs make a token every 40 ms for each of their sequences, so that their pace and their caches are the limit,
and not the cores that everything here shares. Three flows send requests of unlike sizes.

- overload: twice what the engines can do, with the same arrivals, to one gateway and to four fronts at the same time:
  whatever else the machine does falls on both.
- fronts: 0.3 of it, so that nobody waits otherwise, to four fronts, one of which is killed every 20 s.
- owner: the same, with the owner killed every 30 s.

The exit code is 1 if a bound is broken.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from loadtests.figures import print_table
from loadtests.provenance import provenance
from loadtests.results import Document, Measured, Target
from loadtests.run import Bench, Options
from loadtests.scenario import Flow, Phase, Request, Scenario, Slo
from tests.integration.kvgate import serving
from tests.integration.relaying import fake_processes
from tests.integration.workers import Workers, configure
from tests.ports import free_port
from tests.unit.engine.processes import eventually

FRONTS, ENGINES = 4, 2
ENGINE = ("--step-seconds=0.04", "--num-blocks=257", "--block-size=16")
"""4,096 tokens of KV cache each."""
CAPACITY = 16.0
"""Requests per second of `FLOWS` that two such engines do behind one gateway, as measured."""
FLOWS = (
    Flow("small", 5.4, (Request(prompt=(20, 100), output=(20, 40)),)),
    Flow("middle", 2.0, (Request(prompt=(100, 300), output=(40, 80)),)),
    Flow("large", 1.0, (Request(prompt=(300, 600), output=(80, 120)),)),
)
"""Each offers the same service."""
TTFT = 4.0
"""Seconds of queue and prefill that kvgate aims at; the limit of clients is a second more."""
SLO = Slo(ttft=5.0, gap=2.0)
OVERLOAD, BELOW = 2.0, 0.3
BACK_WITHIN = 30.0
"""Seconds until a killed process has a successor. They are judged by what clients see; this ends a broken run."""
LATE = ("wait_too_long", "queue_timeout", "queue_full")
"""Why a request may be refused under overload."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load and what came of it."""

    measured: Measured
    peaks: Mapping[str, float]
    """The most of its KV cache that each engine held, by its own gauge, 0 to 1."""
    ledgers: Mapping[str, float]
    """The most that kvgate's account said of each."""
    preemptions: float
    left: str | None
    """What was still held when all clients were gone; None if nothing."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row for each request."""
        return self.measured.requests

    @property
    def goodput(self) -> float:
        """Tokens of requests in SLO."""
        return sum(row["tokens"] for row in self.rows if row["outcome"] == "in SLO")

    @property
    def offered(self) -> float:
        """Tokens that clients asked for."""
        return sum(row["output"] for row in self.rows)

    @property
    def lost(self) -> list[Mapping[str, Any]]:
        """Rows of requests that were neither answered nor refused for lack of room."""
        return [
            row
            for row in self.rows
            if row["loss"] is not None and not (row["outcome"] == "refused" and {row["reason"], row["code"]} & {*LATE})
        ]

    @property
    def shares(self) -> dict[str, float]:
        """Each flow's share of the service."""
        return {flow: figures["share of service"] for flow, figures in self.measured.flows.items()}


@dataclass(frozen=True, slots=True)
class Kill:
    """A process killed, and the clients' ports of its connections then."""

    pid: int
    ports: frozenset[int]


class Peaks:
    """The most that each engine held, sampled."""

    def __init__(self, workers: Workers, session: aiohttp.ClientSession) -> None:
        self.engines = dict.fromkeys(workers.urls, 0.0)
        self.ledgers: dict[str, float] = {}
        self._workers = workers
        self._session = session

    async def watch(self, every: float = 0.25) -> None:
        """Sample until cancelled. What does not answer, as something was just killed, is asked again."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                for url in self.engines:
                    usage = (await _series(self._session, url))["vllm:kv_cache_usage_perc"]
                    self.engines[url] = max(self.engines[url], usage)
                async with self._session.get(f"{self._workers.url}/kvgate/state") as response:
                    response.raise_for_status()  # there may be no owner to ask
                    for endpoint in (await response.json())["endpoints"]:
                        held = (endpoint["kv"] or {}).get("ledger") or 0.0
                        self.ledgers[endpoint["url"]] = max(self.ledgers.get(endpoint["url"], 0.0), held)
            await asyncio.sleep(every)


@contextlib.contextmanager
def running(
    workers: int, folder: Path, ttft_target: float | None = None, engine: Sequence[str] = ENGINE
) -> Iterator[Workers]:
    """New engines, and kvgate with so many workers in front of them. Without a target nobody is refused for waiting."""
    file = folder / f"kvgate-{workers}.yaml"
    with fake_processes(ENGINES, *engine) as fakes:
        urls = [url for url, _ in fakes]
        configure(file, urls, workers=workers, admission={"ttft_target": ttft_target}, log={"access": False})
        with serving(file.with_suffix(".log"), free_port(), "--config", str(file)) as kvgate:
            kvgate.wait_healthy(ENGINES, 60)
            made = Workers(kvgate, file, urls)
            if workers > 1 and not eventually(lambda: kvgate.log.read_text().count('"listening"') == workers, 60):
                raise RuntimeError(f"not {workers} fronts:\n{kvgate.log.read_text()[-2000:]}")
            yield made


async def loaded(
    workers: Workers, load: float, seconds: float, harm: Callable[[], AsyncIterator[Kill]] | None = None
) -> tuple[Run, list[Kill]]:
    """Put a load on it, kill something from time to time, and look at what is left behind."""
    scenario = Scenario("several workers", (Phase(seconds),), flows=FLOWS, slo=SLO)
    options = Options((load,), 1, 1, drain=60.0, interval=1.0, keep_requests=True, keys={}, flow_header="x-flow")
    kills: list[Kill] = []

    async def kill() -> None:
        if harm is not None:
            async for killed in harm():
                kills.append(killed)  # noqa: PERF401 - those until it is cancelled

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(10.0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        Bench(session, 1, options) as bench,
    ):
        target = Target("kvgate", workers.url, "fake", tuple(f"{url}/metrics" for url in workers.urls))
        document = Document("workers", {}, scenario, CAPACITY, [target])
        before = await _preemptions(session, workers)
        peaks = Peaks(workers, session)
        beside = [asyncio.create_task(peaks.watch()), asyncio.create_task(kill())]
        try:
            measured = await bench.measure(target, document, load, 0, None)
        finally:
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        preemptions = await _preemptions(session, workers) - before
    left = await asyncio.to_thread(_left, workers)
    return Run(measured, peaks.engines, peaks.ledgers, preemptions, left), kills


def _left(workers: Workers) -> str | None:
    """What is held when nobody asks for anything any more."""

    def held() -> list[str]:
        state = workers.kvgate.state()
        ledgers = [f"{end['url']}: {end['in_flight']} in flight, ledger {end['kv']['ledger']}" for end in _held(state)]
        return ledgers + [f"{queue['depth']} queued" for queue in state["queues"] if queue["depth"]]

    return None if eventually(lambda: not held(), 10) else "; ".join(held())


def _held(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [end for end in state["endpoints"] if end["in_flight"] or end["kv"]["ledger"]]


async def killing(
    pick: Callable[[], int], back: Callable[[int], bool], every: float, seconds: float
) -> AsyncIterator[Kill]:
    """Kill what `pick` names every so often, from half that time on, and wait until `back` says it has a successor."""
    start, number = time.monotonic(), 0
    while (due := (number + 0.5) * every) < seconds - 1:
        await asyncio.sleep(max(0.0, start + due - time.monotonic()))
        pid = await asyncio.to_thread(pick)
        os.kill(pid, signal.SIGSTOP)  # so that it accepts nothing between this look and its end
        ports = _clients(pid)
        os.kill(pid, signal.SIGKILL)
        yield Kill(pid, ports)
        if not await asyncio.to_thread(eventually, partial(back, pid), BACK_WITHIN):
            raise RuntimeError(f"{pid} was killed and has no successor after {BACK_WITHIN:.0f} s")
        number += 1


def killing_fronts(workers: Workers, every: float, seconds: float) -> AsyncIterator[Kill]:
    """Kill a front at a time, drawn at random."""
    draw = random.Random(1)  # noqa: S311 - the same victims every time

    def back(pid: int) -> bool:
        fronts = workers.fronts()
        return pid not in fronts and len(fronts) == FRONTS

    return killing(lambda: draw.choice(workers.fronts()), back, every, seconds)


def killing_owners(workers: Workers, every: float, seconds: float) -> AsyncIterator[Kill]:
    """Kill the owner again and again."""
    return killing(workers.owner, lambda pid: workers.owned_by_another_than(pid)(), every, seconds)


def _clients(pid: int) -> frozenset[int]:
    """The other ends' ports of the TCP connections that a process has."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(str(descriptor.readlink()).removeprefix("socket:[").rstrip("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return frozenset(int(row[2].partition(":")[2], 16) for row in rows if row[9] in sockets)


async def _series(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as response:
        lines = [line.rpartition(" ") for line in (await response.text()).splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines}


async def _preemptions(session: aiohttp.ClientSession, workers: Workers) -> float:
    pages = [await _series(session, url) for url in workers.urls]
    return sum(page["vllm:num_preemptions_total"] for page in pages)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What must hold. Short runs say less of shares and goodput, and have wider ones."""

    goodput: float
    """Least, of what it is compared with."""
    share: float
    """Most difference of a flow's share of service, of what it has behind one gateway."""
    killed: float
    """Least tokens in SLO while something is killed, of all that are asked for."""
    wait: float
    """Most seconds to the first token then: below capacity it is there at once otherwise."""


LONG = Bounds(goodput=0.97, share=0.05, killed=0.93, wait=3.0)


async def overload(folder: Path, seconds: float) -> tuple[Run, Run]:
    """One gateway beside four fronts, each at twice what its engines can do."""
    with running(1, folder, TTFT) as alone, running(FRONTS, folder, TTFT) as several:
        (one, _), (four, _) = await asyncio.gather(loaded(alone, OVERLOAD, seconds), loaded(several, OVERLOAD, seconds))
    return one, four


def broken_by_overload(one: Run, four: Run, bounds: Bounds) -> list[str]:
    """The bounds that four fronts break, beside one gateway."""
    broken = [
        _at_least("goodput of one gateway", four.goodput / one.goodput, bounds.goodput),
        f"{four.preemptions:.0f} preemptions, of one gateway {one.preemptions:.0f}"
        if four.preemptions > one.preemptions
        else None,
        *(f"{url} held {peak:.1%} of its cache" for url, peak in four.peaks.items() if peak > 1),
        *(f"the account of {url} came to {peak:.1%}" for url, peak in four.ledgers.items() if peak > 1),
        f"{len(four.lost)} requests failed: {_why(four.lost)}" if four.lost else None,
        f"left behind: {four.left}" if four.left else None,
    ]
    for flow, share in four.shares.items():
        away = share / one.shares[flow] - 1
        if abs(away) > bounds.share:
            broken.append(f"share of {flow}: {share:.3f}, {away:+.1%} of what it is behind one gateway")
    return [line for line in broken if line]


async def killed(folder: Path, seconds: float, what: str, every: float) -> tuple[Run, list[Kill]]:
    """Four fronts below capacity, while something is killed."""
    harm = {"fronts": killing_fronts, "owner": killing_owners}[what]
    with running(FRONTS, folder) as made:
        return await loaded(made, BELOW, seconds, lambda: harm(made, every, seconds))


def broken_by_kills(run: Run, kills: Sequence[Kill], what: str, bounds: Bounds) -> list[str]:
    """The bounds broken while something was killed. Of fronts, their own connections may break."""
    of_victims = frozenset[int]().union(*(kill.ports for kill in kills)) if what == "fronts" else frozenset[int]()
    failed = [row for row in run.rows if row["loss"] is not None and row["port"] not in of_victims]
    waits = [row["ttft"] for row in run.rows if row["loss"] is None and row["ttft"] > bounds.wait]
    broken = [
        f"{len(failed)} requests failed that no killed front had: {_why(failed)}" if failed else None,
        f"{len(waits)} waited over {bounds.wait:g} s, up to {max(waits):.1f} s" if waits else None,
        _at_least("goodput, of what was asked for", run.goodput / run.offered, bounds.killed),
        f"left behind: {run.left}" if run.left else None,
        f"{run.preemptions:.0f} preemptions" if run.preemptions else None,
    ]
    return [line for line in broken if line]


def _at_least(what: str, value: float, least: float) -> str | None:
    return f"{what}: {value:.1%}, at least {least:.0%} are promised" if value < least else None


def _why(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    reasons = [f"{row['loss']} {row['reason'] or row['code'] or ''}".strip() for row in rows]
    return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


def figures(run: Run, kills: Sequence[Kill] = ()) -> dict[str, float]:
    """The figures of a run."""
    chosen = ("offered", "in SLO", "late", "refused", "lost", "SLO tokens/s", "TTFT p50 s", "TTFT p99 s")
    shown = {name: run.measured.figures[name] for name in chosen}
    waits = [row["ttft"] for row in run.rows if row["loss"] is None]
    gaps = [row["worst_gap"] for row in run.rows if row["loss"] is None]
    return {
        **shown,
        "TTFT, most s": max(waits),
        "worst gap s": max(gaps),
        "tokens in SLO, of those asked for": run.goodput / run.offered,
        "preemptions": run.preemptions,
        **{f"peak KV of engine {number}": peak for number, peak in enumerate(run.peaks.values(), 1)},
        **{f"share of {flow}": share for flow, share in run.shares.items()},
        "killed": len(kills),
        "connections of the killed": sum(len(kill.ports) for kill in kills),
    }


async def main() -> bool:
    """Run all or some, and print figures and broken bounds. Returns whether all bounds held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ("overload", "fronts", "owner")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each run")
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--out", type=Path, help="write figures and provenance here, as JSON")
    arguments = parser.parse_args()
    columns: dict[str, dict[str, float]] = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kvgate-workers-") as made:
        folder = Path(made)
        if "overload" in arguments.only:
            one, four = await overload(folder, arguments.seconds)
            columns |= {"one gateway": figures(one), "four fronts": figures(four)}
            broken += broken_by_overload(one, four, LONG)
            print(f"goodput of four fronts: {four.goodput / one.goodput:.1%} of one gateway's", flush=True)
        for what, every in (("fronts", 20.0), ("owner", 30.0)):
            if what in arguments.only:
                run, kills = await killed(folder, arguments.seconds, what, every)
                columns[f"{what} killed"] = figures(run, kills)
                print(f"{what} killed: {columns[f'{what} killed']}", flush=True)
                broken += [f"{what} killed: {line}" for line in broken_by_kills(run, kills, what, LONG)]
    print_table(f"{arguments.seconds:g} s each", columns)
    for line in broken:
        print(f"broken: {line}")
    if arguments.out is not None:
        document = {"provenance": provenance(), "figures": columns, "broken": broken}
        arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    return not broken


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
