"""The CPU that a scrape of `/metrics` each second costs kvgate, per plain request and per streamed event.

    python -m tests.proof.scrape_cost

One kvgate process is measured with and without scrapes by turns, so that a busy machine troubles both alike, and then
what one scrape costs it alone. Scrapes are as Prometheus's: OpenMetrics, on a connection that stays open; every request
has a sampled `traceparent`.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import httpx
import uvloop

from loadtests.processes import cpu_seconds
from loadtests.raw_client import Stream, Tally, post
from loadtests.relay_cost import CHAT, CONVERSATION, LOAD_CORE, Bench, Load, Proxy, asked, repeat
from tests.fakes.tokenizer import make_tokenizer

ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
TRACED = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
STREAMS = 64
RATE = 50.0
SCRAPES = 200


@contextlib.asynccontextmanager
async def scraped(port: int) -> AsyncIterator[None]:
    """While the block runs, the metrics are read each second."""

    async def scrape() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                answer = await client.get(f"http://127.0.0.1:{port}/metrics", headers={"accept": ACCEPT}, timeout=30)
                answer.raise_for_status()
                await asyncio.sleep(1.0)

    scraping = asyncio.create_task(scrape())
    try:
        yield
    finally:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping


async def per_request(proxy: Proxy, seconds: float) -> float:
    """CPU of plain requests, microseconds each."""
    head, _, rest = Load(0).request.partition(b"\r\n")
    before = cpu_seconds(proxy.pid)
    done = await repeat(proxy.port, head + b"\r\n" + TRACED + rest, seconds)
    return 1e6 * (cpu_seconds(proxy.pid) - before) / done


async def per_event(proxy: Proxy, seconds: float) -> float:
    """CPU of streamed events, microseconds each."""
    loop, tally = asyncio.get_running_loop(), Tally(STREAMS)
    request = post(CHAT, asked(CONVERSATION, stream=True, max_tokens=int(RATE * (seconds + 2))))
    streams = [
        (await loop.create_connection(lambda: Stream(request, tally), "127.0.0.1", proxy.port))[1]
        for _ in range(STREAMS)
    ]
    await tally.all_started.wait()
    events, before = tally.events, cpu_seconds(proxy.pid)
    await asyncio.sleep(seconds)
    cost = 1e6 * (cpu_seconds(proxy.pid) - before) / (tally.events - events)
    await asyncio.gather(*(stream.ended for stream in streams))
    return cost


async def per_scrape(proxy: Proxy) -> float:
    """CPU of one scrape of a kvgate that does nothing else, microseconds."""
    async with httpx.AsyncClient(trust_env=False) as client:
        before = cpu_seconds(proxy.pid)
        for _ in range(SCRAPES):
            answer = await client.get(f"http://127.0.0.1:{proxy.port}/metrics", headers={"accept": ACCEPT}, timeout=30)
            answer.raise_for_status()
        return 1e6 * (cpu_seconds(proxy.pid) - before) / SCRAPES


async def run(bench: Bench, rounds: int) -> None:
    """Measure, and print the medians and their ratio."""
    with tempfile.TemporaryDirectory(prefix="kvgate-scrape-") as made:
        load = Load(STREAMS, rate=RATE)
        async with bench.engine(load, Path(made)) as engine, bench.proxy("kvgate", engine, Path(made)) as proxy:
            for name, measure in (("request", per_request), ("event", per_event)):
                without, scraping = [], []
                for turn in range(rounds):
                    for scrapes in (turn % 2 == 0, turn % 2 == 1):  # neither is always the later one
                        if scrapes:
                            async with scraped(proxy.port):
                                scraping.append(await measure(proxy, bench.seconds))
                        else:
                            without.append(await measure(proxy, bench.seconds))
                ratios = sorted(one / other for one, other in zip(scraping, without, strict=True))
                print(
                    f"{name}: {median(without):.1f} us, scraped {median(scraping):.1f} us; "
                    f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
                )
            print(f"scrape: {await per_scrape(proxy):.0f} us")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    command = f"{shlex.quote(sys.executable)} -m gateway.cli serve --endpoint {{engine}} --port {{port}}"
    with tempfile.TemporaryDirectory(prefix="kvgate-scrape-") as made:
        bench = Bench(command, str(make_tokenizer(Path(made))), options.seconds)
        uvloop.run(run(bench, options.rounds))


if __name__ == "__main__":
    main()
