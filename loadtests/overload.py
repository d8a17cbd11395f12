"""An overload of a real vLLM, direct and through kvgate, in turn, with the same arrivals.

    python -m loadtests.overload --direct http://127.0.0.1:8000 --kvgate http://127.0.0.1:8080

Arrivals are open-loop: a request is sent at its time whether or not the ones before it are answered, and none is
sent again. A request is lost when its answer is anything but the whole of what it asked for.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec

from loadtests.figures import medians, percentile, print_table, readable
from loadtests.prometheus import PeakWatch, scrape
from loadtests.provenance import provenance
from loadtests.streaming import Outcome, stream_completion
from loadtests.workload import Workload

PREEMPTIONS = "vllm:num_preemptions_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV = "vllm:kv_cache_usage_perc"
QUEUE_WAIT = "kvgate_queue_wait_seconds"
QUEUE_DEPTH = "kvgate_queue_depth"
QUEUED_SECONDS = 0.01
"""A wait longer than this counts as queued: less is the hand-over itself."""
SCRAPE_INTERVAL = 0.25
IDLE_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the load goes and where the engine is watched."""

    direct: str
    kvgate: str | None
    metrics: str


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The client's side of a run."""
    whole = [outcome for outcome in outcomes if outcome.loss is None]
    tokens = sum(outcome.completion_tokens for outcome in whole)
    span = max(outcome.ended for outcome in outcomes) - min(outcome.started for outcome in outcomes)
    ttft = [outcome.ttft for outcome in whole]
    silence = [outcome.worst_silence for outcome in whole]
    return {
        "requests lost": len(outcomes) - len(whole),
        "output tokens/s": tokens / span,
        "seconds": span,
        "TTFT p50 s": percentile(ttft, 0.5),
        "TTFT p99 s": percentile(ttft, 0.99),
        "worst silence p50 s": percentile(silence, 0.5),
        "worst silence p99 s": percentile(silence, 0.99),
    }


async def run(
    session: aiohttp.ClientSession, url: str, targets: Targets, workload: Workload, seed: int
) -> dict[str, float]:
    """One run against one address, once the engine is idle."""
    model = await served_model(session, targets.direct)
    await idle(session, targets.metrics)
    before = await scrape(session, targets.metrics)
    epoch = asyncio.get_running_loop().time() + 0.1
    async with PeakWatch(session, targets.metrics, [KV, WAITING, RUNNING], SCRAPE_INTERVAL) as watch:
        outcomes = await asyncio.gather(
            *(stream_completion(session, url, model, arrival, epoch) for arrival in workload.arrivals(seed))
        )
    await idle(session, targets.metrics)
    after = await scrape(session, targets.metrics)
    for loss, count in Counter(outcome.loss for outcome in outcomes if outcome.loss).items():
        print(f"  {count} lost: {loss}")
    return {
        **figures(outcomes),
        "preemptions": after.total(PREEMPTIONS) - before.total(PREEMPTIONS),
        "peak KV": watch.peaks[KV],
        "peak running": watch.peaks[RUNNING],
        "peak waiting in engine": watch.peaks[WAITING],
    }


async def run_gated(
    session: aiohttp.ClientSession, url: str, targets: Targets, workload: Workload, seed: int
) -> dict[str, float]:
    """One run through kvgate, with what its own queue did."""
    before = await scrape(session, f"{url}/metrics")
    async with PeakWatch(session, f"{url}/metrics", [QUEUE_DEPTH], SCRAPE_INTERVAL) as watch:
        measured = await run(session, url, targets, workload, seed)
    after = await scrape(session, f"{url}/metrics")
    queued = after.over(QUEUE_WAIT, QUEUED_SECONDS) - before.over(QUEUE_WAIT, QUEUED_SECONDS)
    return {**measured, "queued in kvgate": queued, "peak queue in kvgate": watch.peaks[QUEUE_DEPTH]}


async def served_model(session: aiohttp.ClientSession, url: str) -> str:
    """The first model an endpoint serves."""
    async with session.get(f"{url}/v1/models") as response:
        response.raise_for_status()
        name = (await response.json())["data"][0]["id"]
    assert isinstance(name, str)
    return name


async def idle(session: aiohttp.ClientSession, metrics: str) -> None:
    """Wait until the engine holds no request, so that no run pays for the one before.

    Raises:
        TimeoutError: it is still busy after a minute; something else loads it.
    """
    async with asyncio.timeout(IDLE_TIMEOUT):
        while True:
            page = await scrape(session, metrics)
            if page.total(RUNNING) + page.total(WAITING) == 0:
                return
            await asyncio.sleep(SCRAPE_INTERVAL)


async def measure(targets: Targets, workload: Workload, rounds: int, seed: int) -> dict[str, list[dict[str, float]]]:
    """Direct and gated runs in turn, a round of both on the same arrivals."""
    results: dict[str, list[dict[str, float]]] = {"direct": []}
    if targets.kvgate is not None:
        results["kvgate"] = []
    # A connection for each request: vLLM closes idle ones after 5 s, and a race with that is not what is measured.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        warm_up = replace(workload, requests=8, output_tokens=(50, 100))
        await run(session, targets.direct, targets, warm_up, seed)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}")
            results["direct"].append(await run(session, targets.direct, targets, workload, seed + number))
            if targets.kvgate is not None:
                gated = await run_gated(session, targets.kvgate, targets, workload, seed + number)
                results["kvgate"].append(gated)
    return results


def report(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Print the medians side by side and return them."""
    columns = {name: medians(rounds) for name, rounds in results.items()}
    print_table("median of the rounds", columns)
    if "kvgate" in columns:
        direct, gated = columns["direct"], columns["kvgate"]
        if direct["preemptions"]:
            print(f"preemptions: {readable(gated['preemptions'] / direct['preemptions'])} of direct's")
        print(f"output tokens per second: {readable(gated['output tokens/s'] / direct['output tokens/s'])} of direct's")
    return columns


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direct", required=True, help="base URL of the vLLM")
    parser.add_argument("--kvgate", help="base URL of the kvgate in front of it; without it only direct runs")
    parser.add_argument("--metrics", help="the vLLM's metrics page; by default /metrics of --direct")
    parser.add_argument("--load", type=float, default=1.0, help="share of the arrival rate: 0.1 is a tenth")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every figure here, as JSON")
    options = parser.parse_args()
    workload = Workload(requests=options.requests)
    workload = replace(workload, rate=workload.rate * options.load)
    targets = Targets(options.direct, options.kvgate, options.metrics or f"{options.direct}/metrics")
    results = asyncio.run(measure(targets, workload, options.rounds, options.seed))
    columns = report(results)
    if options.out is not None:
        document = {"provenance": provenance(), "workload": workload, "medians": columns, "rounds": results}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


if __name__ == "__main__":
    main()
