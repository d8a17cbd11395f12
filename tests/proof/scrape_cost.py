"""What it costs kvgate to be watched: its CPU per plain request and per streamed event with a viewer and Prometheus.

    python -m tests.proof.scrape_cost

One kvgate process is measured watched and unwatched by turns, so that a busy machine troubles both alike. Watched is:
one viewer of `/kvgate/events`, and a scrape of `/metrics` every 15 s as Prometheus's is, OpenMetrics on a connection
that stays open. Every request has a sampled `traceparent`. Beside that: a hundred viewers, as a share of a core while
streams run, and one scrape by itself.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
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
STREAMS = 256
RATE = 50.0
SCRAPES = 200
INTERVAL = 15.0
"""Seconds from one scrape to the next, and of each measurement: each has one."""
ADDRESSES = 5
"""Of the viewers: one address may have half of what the others leave, at most 64."""
PIECE = 2**16


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks."""

    viewers: int = 0
    prometheus: bool = False


NOBODY, WATCHED, CROWD = Watch(), Watch(1, prometheus=True), Watch(100)


@contextlib.asynccontextmanager
async def watching(port: int, watch: Watch) -> AsyncIterator[None]:
    """They look while the block runs.

    Raises:
        RuntimeError: one of them was not served.
    """
    views = [await _opened(port, f"127.0.0.{2 + number % ADDRESSES}") for number in range(watch.viewers)]
    tasks = [asyncio.create_task(_view(*view)) for view in views]
    if watch.prometheus:
        tasks.append(asyncio.create_task(_scrape(port)))
    try:
        yield
        if any(task.done() for task in tasks):
            raise RuntimeError("one who looked was not served to the end")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _opened(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(b"GET /kvgate/events HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % port)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(head.decode("latin-1"))
    return reader, writer


async def _view(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while await reader.read(PIECE):
            pass


async def _scrape(port: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            answer = await client.get(f"http://127.0.0.1:{port}/metrics", headers={"accept": ACCEPT}, timeout=30)
            answer.raise_for_status()
            await asyncio.sleep(INTERVAL)


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


async def by_turns(
    measure: Callable[[Proxy, float], Awaitable[float]],
    proxy: Proxy,
    watches: Sequence[Watch],
    bench: Bench,
    rounds: int,
) -> dict[Watch, list[float]]:
    """What each of these ways to be watched costs, `rounds` times; none is always the later one."""
    found: dict[Watch, list[float]] = {watch: [] for watch in watches}
    for turn in range(rounds):
        for place in range(len(watches)):
            watch = watches[(turn + place) % len(watches)]
            async with watching(proxy.port, watch):
                found[watch].append(await measure(proxy, bench.seconds))
    return found


def spread(figures: Sequence[float], form: str = ".1f") -> str:
    """The median, the least and the most."""
    return f"{median(figures):{form}} ({min(figures):{form}} to {max(figures):{form}})"


async def run(bench: Bench, rounds: int) -> None:
    """Measure, and print medians with their spread."""
    with tempfile.TemporaryDirectory(prefix="kvgate-scrape-") as made:
        load = Load(STREAMS, rate=RATE)
        async with bench.engine(load, Path(made)) as engine, bench.proxy("kvgate", engine, Path(made)) as proxy:
            for name, measure, watches in (
                ("request", per_request, (NOBODY, WATCHED)),
                ("event", per_event, (NOBODY, WATCHED, CROWD)),
            ):
                found = await by_turns(measure, proxy, watches, bench, rounds)
                alone, watched = found[NOBODY], found[WATCHED]
                ratios = [one / other for one, other in zip(watched, alone, strict=True)]
                print(f"us per {name}: {spread(alone)}, watched {spread(watched)}; ratio {spread(ratios, '.3f')}")
                if CROWD in found:
                    more = [one - other for one, other in zip(found[CROWD], alone, strict=True)]
                    shares = [us * STREAMS * RATE / 1e6 for us in more]
                    print(f"{CROWD.viewers} viewers, share of a core: {spread(shares, '.2%')}")
            print(f"us per scrape: {await per_scrape(proxy):.0f}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=INTERVAL, help="of each measurement")
    options = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    command = f"{shlex.quote(sys.executable)} -m gateway serve --endpoint {{engine}} --port {{port}}"
    with tempfile.TemporaryDirectory(prefix="kvgate-scrape-") as made:
        bench = Bench(command, str(make_tokenizer(Path(made))), options.seconds)
        uvloop.run(run(bench, options.rounds))


if __name__ == "__main__":
    main()
