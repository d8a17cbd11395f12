r"""An open-loop load test: one scenario against one or more targets in turn, with the same arrivals.

    python -m loadtests.run long-outputs --target direct=http://127.0.0.1:8000 --target kvgate=http://127.0.0.1:8080 \
        --metrics kvgate=http://127.0.0.1:8000/metrics --load 2 --seconds 300 --out results.json --html page.html

    python -m loadtests.run peak --target kvgate=http://127.0.0.1:8080 --metrics kvgate=http://127.0.0.1:8000/metrics \
        --peak-prompt 8000 --peak-concurrency 64 --minutes 5

Requests are sent at their times, whether or not earlier ones are answered. None is sent again. The exit code is 1 if
the scenario has a verdict and the last target fails it.
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import aiohttp
import yaml
from msgspec.structs import replace as replaced

from loadtests.arrivals import mean_output, segments
from loadtests.figures import print_table, readable
from loadtests.page import render
from loadtests.provenance import provenance
from loadtests.results import Document, Measured, Target, distributions, rows_of
from loadtests.scenario import Phase, RequestChange, Scenario, ScenarioError, load, names
from loadtests.series import Sampler, idle
from loadtests.summary import Judged, beside, client_figures, figures, flow_figures, recovery, series_figures
from loadtests.verdict import check, passed, print_verdict
from loadtests.worker import Run, Worked, ready, work

LEAD = 0.5
"""Seconds between the start of the client processes and the first arrival."""
CALIBRATION_CLIENTS = 8
"""Clients at the start of a calibration."""
CALIBRATION_GAIN = 1.05
"""Gain from twice as many clients that is needed to double them again."""
CALIBRATION_WARM_UP = 0.3
"""Share of a calibration that is left out at its start."""
BUSY_CLIENT = 0.8
"""A client process that uses more than this share of a core is too slow for its load."""
LATE_CLIENT = 0.05
"""Seconds of delay in sending that put the figures in doubt."""
EVERY_FLOW = "*"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a measurement."""

    loads: tuple[float, ...]
    rounds: int
    seed: int
    drain: float
    interval: float
    keep_requests: bool
    keys: Mapping[str, str]
    """API keys by flow; `*` is the key of every other flow."""
    flow_header: str


class Bench:
    """The client processes, and what they need to know about a target."""

    def __init__(self, session: aiohttp.ClientSession, workers: int, options: Options) -> None:
        self.context: int | None = None
        """The longest sequence that all targets take, in tokens."""
        self._session = session
        self._options = options
        # A spawned process inherits no event loop. With an executor each, none takes two shares.
        spawn = multiprocessing.get_context("spawn")
        self._workers = [ProcessPoolExecutor(1, mp_context=spawn) for _ in range(workers)]

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(worker, ready) for worker in self._workers))
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)

    async def discover(self, name: str, url: str, metrics: Sequence[str], model: str | None) -> Target:
        """Ask a target for its model (this one, or by default its first) and that model's longest sequence."""
        key = next(iter(self._options.keys.values()), None)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self._session.get(f"{url}/v1/models", headers=headers) as response:
            response.raise_for_status()
            found = {entry["id"]: entry for entry in (await response.json())["data"]}
        chosen = model if model is not None and model in found else str(next(iter(found)))
        longest = found.get(chosen, {}).get("max_model_len")
        self.context = min((length for length in (self.context, longest) if length), default=None)
        return Target(name, url, chosen, (f"{url}/metrics", *metrics))

    async def calibrate(self, target: Target, scenario: Scenario, seconds: float) -> float:
        """The most requests per second of the scenario's mix that a target completes, with any number of clients.

        It doubles the clients until they gain nothing: an engine pushed too far completes less.
        """
        best, clients = 0.0, CALIBRATION_CLIENTS
        while True:
            completed = await self._saturate(target, scenario, seconds, clients)
            print(f"{clients} clients of {target.name}: {readable(completed)} requests per second", flush=True)
            if completed < best * CALIBRATION_GAIN:
                return max(best, completed)
            best, clients = completed, clients * 2

    async def _saturate(self, target: Target, scenario: Scenario, seconds: float, clients: int) -> float:
        phases = (Phase(seconds),)
        saturating = replaced(scenario, phases=phases, seconds=None, concurrency=clients, arrivals="poisson")
        run = self._run(saturating, target, 0.0, 0, f"calibration {clients}")
        worked, _ = await self._work(target, replace(run, drain=0.0))
        records = [record for part in worked for record in part.records]
        by_second = Judged.of(records, scenario.slo, seconds).by_second.values()
        warm_up = int(seconds * CALIBRATION_WARM_UP)
        tokens = sum(sum(bins[warm_up:]) for bins in by_second)
        return tokens / (seconds - warm_up) / mean_output(saturating, self.context)

    async def measure(self, target: Target, document: Document, load: float, number: int, only: str | None) -> Measured:
        """One run at a load, in a round, of one flow or all, once the target is idle."""
        scenario, capacity = document.scenario, document.capacity
        seed = self._options.seed + number
        run = self._run(scenario, target, capacity * load, seed, f"{seed} {target.name} {load} {only}")
        worked, sampler = await self._work(target, replace(run, only=only))
        judged = Judged.of([r for part in worked for r in part.records], scenario.slo, scenario.duration)
        if not judged.records:
            raise ScenarioError("no request arrived: the load, the capacity or the time is too small")
        found = {
            **figures(judged),
            **series_figures(sampler.series, len(judged.records)),
            **client_figures(judged.records, [part.cpu for part in worked]),
        }
        timeline = segments(scenario, capacity * load)
        if any(segment.spike for segment in timeline):
            found["seconds to recover"] = recovery(judged, timeline)
        offered, served = judged.arrivals_by_second()
        tokens = [sum(second) for second in zip(*judged.by_second.values(), strict=True)]
        return Measured(
            target=target.name,
            load=load,
            round=number,
            only=only,
            figures=found,
            flows=flow_figures(judged),
            reasons=judged.reasons,
            distributions=distributions(judged),
            offered_by_second=offered,
            served_by_second=served,
            tokens_by_second=tokens,
            times=sampler.times,
            series=sampler.series,
            requests=rows_of(judged) if self._options.keep_requests else (),
        )

    def _run(self, scenario: Scenario, target: Target, rate: float, seed: int, salt: str) -> Run:
        keys = self._options.keys
        headers: dict[str, dict[str, str]] = defaultdict(dict)
        for flow in scenario.flows:
            headers[flow.name] = {self._options.flow_header: flow.name}
            if key := keys.get(flow.name, keys.get(EVERY_FLOW)):
                headers[flow.name]["Authorization"] = f"Bearer {key}"
        return Run(
            scenario=scenario,
            url=target.url,
            model=target.model,
            rate=rate,
            seed=seed,
            salt=salt,
            context=self.context,
            headers=dict(headers),
            drain=self._options.drain,
        )

    async def _work(self, target: Target, run: Run) -> tuple[list[Worked], Sampler]:
        await idle(self._session, target.metrics)
        loop, shares = asyncio.get_running_loop(), len(self._workers)
        epoch = time.monotonic() + LEAD
        async with Sampler(self._session, target.metrics, self._options.interval, epoch) as sampler:
            parts = [
                loop.run_in_executor(worker, work, run, share, shares, epoch)
                for share, worker in enumerate(self._workers)
            ]
            return list(await asyncio.gather(*parts)), sampler


async def measure(bench: Bench, targets: Sequence[Target], document: Document, options: Options) -> None:
    """Run every load, round and target. Every other round takes the targets in reverse order."""
    scenario = document.scenario
    for factor in options.loads:
        for number in range(options.rounds):
            print(f"load {factor:g}, round {number + 1} of {options.rounds}", flush=True)
            for target in targets if number % 2 == 0 else reversed(targets):
                run = await bench.measure(target, document, factor, number, None)
                if scenario.alone is not None:
                    alone = await bench.measure(target, document, factor, number, scenario.alone)
                    run = replace(run, figures={**run.figures, **beside(scenario.alone, run.flows, alone.flows)})
                    document.runs.append(alone)
                document.runs.append(run)
                _warn(run)


def report(document: Document) -> None:
    """Print the medians side by side, the flows, the reasons for failures, and the verdict."""
    for factor in document.loads:
        closed = document.scenario.concurrency
        what = f"{closed} clients" if closed else f"load {factor:g} of {readable(document.capacity)} requests/s"
        print_table(f"{document.name}, {what}: medians of the rounds", document.medians(factor))
        for run in document.runs:
            if (run.load, run.round, run.only) == (factor, 0, None):
                if len(run.flows) > 1:
                    print_table(f"flows, {run.target}", run.flows)
                for why, count in run.reasons.items():
                    print(f"  {run.target}: {count:,} of the first round: {why}")
    for target, findings in document.verdicts.items():
        print_verdict(target, findings)


def _warn(run: Measured) -> None:
    busy, late = run.figures["client busiest process"], run.figures["client late p99 s"]
    if busy > BUSY_CLIENT or late > LATE_CLIENT:
        print(
            f"warning: the client of {run.target} used {busy:.0%} of a core and sent {late * 1000:.0f} ms late at p99; "
            "what it measured is its own: give it --workers, or cores",
            flush=True,
        )


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Scenario, Options]:
    """Read the command line.

    Raises:
        ScenarioError: the scenario does not exist, or the options do not suit it.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", help=f"{', '.join(names())}, or the path of a .yaml")
    parser.add_argument("--target", action="append", required=True, type=_named, metavar="NAME=URL")
    parser.add_argument("--metrics", action="append", default=[], type=_named, metavar="NAME=URL")
    parser.add_argument("--model", help="where a target serves it; else, the first that it serves")
    parser.add_argument("--load", type=_numbers, default=(1.0,), help="multiples of the capacity: 2, or 0.5,1,2")
    parser.add_argument("--capacity", type=float, help="requests per second at a load of 1; else measured")
    parser.add_argument("--calibrate", type=float, default=15.0, metavar="SECONDS", help="for each number of clients")
    parser.add_argument("--seconds", type=float, help="how long requests arrive")
    parser.add_argument("--minutes", type=float, help="the same")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="client processes")
    parser.add_argument("--drain", type=float, default=600.0, help="seconds after the last arrival that answers have")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between scrapes")
    parser.add_argument("--prompt-scale", type=float, default=1.0, help="on all prompts, for a smaller model")
    parser.add_argument("--output-scale", type=float, default=1.0, help="on all outputs")
    parser.add_argument("--peak-prompt", type=int, help="tokens of every prompt")
    parser.add_argument("--peak-output", type=int, help="tokens of every output")
    parser.add_argument("--peak-concurrency", type=int, help="clients that wait, instead of arrivals that do not")
    parser.add_argument("--keys", type=Path, help="YAML file of API keys by flow; `*` is every other flow's")
    parser.add_argument("--flow-header", default="x-flow", help="header that names the flow")
    parser.add_argument("--out", type=Path, help="write every figure here, as JSON")
    parser.add_argument("--html", type=Path, help="write a page with plots here")
    parser.add_argument("--requests", action="store_true", help="with a row for each request in the JSON")
    given = parser.parse_args(arguments)
    change = RequestChange(given.prompt_scale, given.output_scale, given.peak_prompt, given.peak_output)
    scenario = load(given.scenario).with_requests(change)
    seconds = given.minutes * 60 if given.minutes else given.seconds
    scenario = replaced(
        scenario,
        seconds=seconds or scenario.seconds,
        concurrency=given.peak_concurrency or scenario.concurrency,
    )
    check(scenario)
    options = Options(
        loads=given.load if scenario.concurrency is None else (1.0,),
        rounds=given.rounds,
        seed=given.seed,
        drain=given.drain,
        interval=given.interval,
        keep_requests=given.requests,
        keys=yaml.safe_load(given.keys.read_text()) if given.keys else {},
        flow_header=given.flow_header,
    )
    return given, scenario, options


async def main(arguments: Sequence[str]) -> bool:
    """Measure, report and write. Returns False if the last target fails the verdict."""
    given, scenario, options = parse(arguments)
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        bench = await stack.enter_async_context(Bench(session, given.workers, options))
        targets: list[Target] = []
        for name, url in given.target:
            pages = [page for target, page in given.metrics if target == name]
            targets.append(await bench.discover(name, url.rstrip("/"), pages, given.model))
        capacity = given.capacity or 0.0
        if not capacity and scenario.concurrency is None:
            capacity = await bench.calibrate(targets[0], scenario, given.calibrate)
            print(f"capacity of {targets[0].name}: {readable(capacity)} requests per second", flush=True)
        document = Document(
            Path(given.scenario).stem, provenance(), scenario, capacity, [target.public() for target in targets]
        )
        await measure(bench, targets, document, options)
    if given.out is not None:
        document.write(given.out)
    if given.html is not None:
        given.html.write_text(render(document))
    report(document)
    return passed(document.verdicts.get(targets[-1].name, ()))


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"expected NAME=URL, got {text!r}")
    return name, value


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


if __name__ == "__main__":
    try:
        sys.exit(0 if asyncio.run(main(sys.argv[1:])) else 1)
    except (ScenarioError, aiohttp.ClientError, TimeoutError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
