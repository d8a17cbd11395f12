"""The limits of the relay: what it adds to a TTFT, and what streams, departures and endless requests do to it.

    python -m loadtests.relay_limits [--only NAME ...] [--requests N] [--out FOLDER]

    ttft          time added to the first token at 200 requests a second, by kvgate and by nginx, nothing to be counted
    long-prompt   gaps of 256 streams while a prompt of 100,000 tokens comes every second
    streams       memory of each of 5,000 streams, every one read to its end and checked
    departures    from a client's departure until its engine sees it, in each phase, beside 256 streams
    endurance     memory, sockets and reservations while N short requests go through

As in `relay_cost`, kvgate has core 0 to itself, with all on that it has by default. The load and the engine's stand-in
share core 1.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from loadtests.figures import percentiles, print_table
from loadtests.page import STYLE
from loadtests.palette import colours
from loadtests.processes import resident, sockets
from loadtests.provenance import provenance
from loadtests.raw_client import Caller, Repeater, Stream, Tally, TimedStream, post
from loadtests.relay_cost import (
    CHAT,
    COMPLETIONS,
    CONNECTIONS,
    CONVERSATION,
    IDS,
    LOAD_CORE,
    SETTLE_SECONDS,
    Bench,
    Load,
    Proxy,
    asked,
)
from loadtests.series import page
from loadtests.svg import line_chart
from tests.fakes.tokenizer import make_tokenizer
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.fakes.vllm.requests import Tokenize, tokenize_words

RATE = 200.0
"""Requests per second while the TTFT is measured; they come at random."""
TURNS = 5
"""Of each way while the TTFT is measured: what else the machine does meets all of them."""
BESIDE = Load(256, phases=10)
"""Streams beside long prompts and departures."""
MANY = Load(5000, rate=1.0, phases=10)
MANY_TOKENS = 80
"""Of each: it goes on until the last has begun, and been measured."""
AT_ONCE = 500
"""Of many streams, so many begin at the same time."""
LONG_TEXT = "how now brown cow " * 10_000
"""100,000 tokens of the tokenizer that is made here."""
DEPARTURES: dict[str, tuple[bool, Fault | None]] = {
    "prefill": (True, Fault(FaultKind.SLOW_PREFILL, path=COMPLETIONS, seconds=60.0)),
    "mid-stream": (True, None),
    "not streamed": (False, None),
}
"""By phase: whether the request asks for a stream, and what its engine does."""
LEAVING = 200
"""Clients that leave in each phase, one after the other."""
PATIENCE = 120.0
"""Seconds that anything here may take to begin or to end."""
LOOK_SECONDS = 0.001
SAMPLE_SECONDS = 1.0
HELD = "kvgate_in_flight"
"""The metric of reservations."""
MEMORY, SOCKETS, RESERVATIONS = "memory, MB", "sockets", "reservations"
AIMS = {
    "added TTFT p50, ms": 0.6,
    "added TTFT p99, ms": 2.0,
    "p99 gap with long prompts / without": 1.3,
    "KB per stream": 24.0,
    "streams torn or reordered": 0.0,
    **{f"departure seen by the engine, {phase}, p99, ms": 5.0 for phase in DEPARTURES},
    "requests failed": 0.0,
    "sockets left": 0.0,
    "reservations left": 0.0,
}
"""At most. A figure without one is told to explain another."""


@dataclass(slots=True)
class Found:
    """What was measured: figures, and the series of `endurance`."""

    figures: dict[str, float] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def running(bench: Bench, load: Load) -> AsyncIterator[Proxy]:
    """A kvgate in front of an engine for this load."""
    with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
        async with bench.engine(load, Path(made)) as engine, bench.proxy("kvgate", engine, Path(made)) as proxy:
            yield proxy


async def call(port: int) -> Caller:
    """A connection for requests."""
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(Caller, "127.0.0.1", port)
    return caller


async def until(reached: Callable[[], bool]) -> None:
    """Look until something is so."""
    while not reached():  # noqa: ASYNC110 - what is looked for tells nobody
        await asyncio.sleep(LOOK_SECONDS)


async def ttft(bench: Bench, found: Found) -> None:
    """Measure how long a request takes to the engine and its first event back, by turns without a proxy and with each.

    What the engine takes between the two is not in it: it runs here, and so has the same clock.
    """
    settings = FakeSettings(
        num_blocks=400_000, max_num_seqs=8192, max_batched_tokens=200_000, max_model_len=200_000, step_seconds=0.002
    )
    tokenize: Tokenize = tokenize_words
    if bench.tokenizer is not None:
        from tests.fakes.vllm.model_tokenizer import model_tokenizer  # noqa: PLC0415 - it takes seconds

        tokenize = model_tokenizer(Path(bench.tokenizer))
    hops: dict[str, list[tuple[float, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        began: dict[str, tuple[FakeVllm, Proxy]] = {}
        for name in ("direct", "nginx", "kvgate"):  # each has an engine: kvgate's gets no other requests than its own
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-loadtest-")))
            fake = await stack.enter_async_context(FakeVllm(settings, tokenize=tokenize))
            proxy = await stack.enter_async_context(bench.proxy(name, Proxy(os.getpid(), fake.port), folder))
            began[name] = fake, proxy
        for _ in range(TURNS):
            for name, (fake, proxy) in began.items():
                hops.setdefault(name, []).extend(await _hops(fake, proxy.port, bench.seconds / TURNS))
    ways = {name: [there + back for there, back in each] for name, each in hops.items()}
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        direct, nginx, kvgate = (percentiles(ways[name], (share,))[0] for name in began)
        there, back = (percentiles(way, (share,))[0] for way in zip(*hops["kvgate"], strict=True))
        found.figures |= {
            f"added TTFT {label}, ms": 1000 * (kvgate - direct),
            f"  added by nginx, {label}, ms": 1000 * (nginx - direct),
            f"  to the engine and back without a proxy, {label}, ms": 1000 * direct,
            f"  to the engine through kvgate, {label}, ms": 1000 * there,
            f"  back through kvgate, {label}, ms": 1000 * back,
        }


async def _hops(fake: FakeVllm, port: int, seconds: float) -> list[tuple[float, float]]:
    """For each of the requests that come at random: how long it took to the engine, and its first event back."""
    body = asked({"prompt": IDS}, stream=True, max_tokens=4)
    gap, loop = random.Random(0), asyncio.get_running_loop()
    free = [await call(port) for _ in range(CONNECTIONS)]
    times: dict[str, tuple[float, float]] = {}
    fake.seen.clear()

    async def one(identifier: str) -> None:
        caller = free.pop() if free else await call(port)
        sent = time.monotonic()
        caller.ask(post(COMPLETIONS, body, {"x-request-id": identifier}))
        times[identifier] = sent, await caller.begun
        if (status := await caller.ended) != 200:
            raise RuntimeError(f"a request was answered with {status}")
        free.append(caller)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as all_:
        due = loop.time()
        for number in range(int(RATE * seconds)):
            due += gap.expovariate(RATE)
            await asyncio.sleep(max(0.0, due - loop.time()))
            all_.create_task(one(str(number)))
    for caller in free:
        caller.leave()
    hops = []
    for seen in fake.seen:
        if seen.begun is not None and (known := times.get(seen.header("x-request-id") or "")) is not None:
            sent, begun = known
            hops.append((seen.arrived - sent, begun - seen.begun))
    return hops


@contextlib.asynccontextmanager
async def streaming(
    port: int, load: Load, tokens: int, make: Callable[[bytes, Tally], Stream] = Stream
) -> AsyncIterator[list[Stream]]:
    """Streams that have all begun; the block ends when they have, too.

    Raises:
        TimeoutError: they do not begin or end.
    """
    loop, tally, streams = asyncio.get_running_loop(), Tally(load.streams), list[Stream]()
    request = post(CHAT, asked(CONVERSATION, stream=True, max_tokens=tokens))
    async with asyncio.timeout(PATIENCE):
        while len(streams) < load.streams:
            for _ in range(min(AT_ONCE, load.streams - len(streams))):
                streams.append((await loop.create_connection(lambda: make(request, tally), "127.0.0.1", port))[1])
            await until(lambda: tally.waiting <= load.streams - len(streams))
    await asyncio.sleep(SETTLE_SECONDS)
    yield streams
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(stream.ended for stream in streams))


async def long_prompt(bench: Bench, found: Found) -> None:
    """Measure gaps of streams with and without a long prompt every second."""
    gaps: list[float] = []
    async with running(bench, BESIDE) as proxy:
        tokens = int(BESIDE.rate * (2 * bench.seconds + 2 * SETTLE_SECONDS))
        async with streaming(proxy.port, BESIDE, tokens, lambda request, tally: TimedStream(request, tally, gaps)):
            gaps.clear()
            await asyncio.sleep(bench.seconds)
            without = percentiles(gaps, (0.99,))[0]
            gaps.clear()
            callers = []
            for number in range(int(bench.seconds)):
                prompt = {"messages": [{"role": "user", "content": f"{number} {LONG_TEXT}"}]}
                callers.append(await call(proxy.port))
                callers[-1].ask(post(CHAT, asked(prompt, stream=False, max_tokens=1)))
                await asyncio.sleep(1.0)
            beside = percentiles(gaps, (0.99,))[0]
            async with asyncio.timeout(PATIENCE):
                statuses = {await caller.ended for caller in callers}
    if statuses != {200}:
        raise RuntimeError(f"long prompts were answered with {statuses}")
    found.figures["p99 gap with long prompts / without"] = beside / without
    found.figures |= {"  p99 gap without, ms": 1000 * without, "  p99 gap with long prompts, ms": 1000 * beside}


async def streams(bench: Bench, found: Found) -> None:
    """Measure what a stream adds to kvgate's memory."""
    async with running(bench, MANY) as proxy:
        before = resident(proxy.pid)
        async with streaming(proxy.port, MANY, MANY_TOKENS) as all_:
            found.figures["KB per stream"] = (resident(proxy.pid) - before) / len(all_) / 1024
    broken = sum(
        not (stream.status == 200 and stream.check.intact and stream.check.events == MANY_TOKENS) for stream in all_
    )
    found.figures |= {"streams torn or reordered": broken, "  streams": len(all_)}


async def departures(bench: Bench, found: Found) -> None:
    """Measure when an engine sees that a client has left. The engine runs here: it has the same clock."""
    settings = FakeSettings(
        num_blocks=100_000, max_num_seqs=4096, max_batched_tokens=100_000, max_model_len=100_000,
        step_seconds=1 / BESIDE.rate, phases=BESIDE.phases,
    )  # fmt: skip
    bench = replace(bench, tokenizer=None)
    async with FakeVllm(settings) as fake, contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-loadtest-")))
        proxy = await stack.enter_async_context(bench.proxy("kvgate", Proxy(os.getpid(), fake.port), folder))
        for phase, (stream, fault) in DEPARTURES.items():
            request = post(COMPLETIONS, asked({"prompt": IDS}, stream=stream, max_tokens=2000))
            seconds = []
            beside = [await call(proxy.port) for _ in range(BESIDE.streams)]
            for one in beside:
                one.ask(post(CHAT, asked(CONVERSATION, stream=True, max_tokens=20_000)))
            async with asyncio.timeout(PATIENCE):
                for one in beside:
                    await one.begun
                for _ in range(LEAVING):
                    if fault is not None:
                        fake.faults.add(fault)
                    seconds.append(await _departure(fake, proxy.port, request, begun=stream and fault is None))
            for one in beside:
                one.leave()
            p50, p99 = percentiles(seconds, (0.5, 0.99))
            found.figures[f"departure seen by the engine, {phase}, p99, ms"] = 1000 * p99
            found.figures[f"  departure seen by the engine, {phase}, p50, ms"] = 1000 * p50


async def _departure(fake: FakeVllm, port: int, request: bytes, *, begun: bool) -> float:
    """Leave once the engine has the request, and perhaps its answer has begun; seconds until the engine sees it."""
    fake.seen.clear()
    caller = await call(port)
    caller.ask(request)
    await until(lambda: bool(fake.seen))
    seen = fake.seen[0]
    if begun:
        await caller.begun
    left = time.monotonic()
    caller.leave()
    await until(lambda: seen.client_gone_at is not None)
    return (seen.client_gone_at or 0.0) - left


async def endurance(bench: Bench, found: Found, requests: int) -> None:
    """Send plain requests without end, and watch what stays of them."""
    loop = asyncio.get_running_loop()
    load = Load(0, rate=200.0)
    async with running(bench, load) as proxy, aiohttp.ClientSession() as session:

        async def look() -> dict[str, float]:
            async with session.get(f"http://127.0.0.1:{proxy.port}/metrics") as response:
                held = sum(page(await response.text()).get(HELD, ()))
            return {MEMORY: resident(proxy.pid) / 2**20, SOCKETS: sockets(proxy.pid), RESERVATIONS: held}

        before, began = await look(), loop.time()
        repeaters = [
            (await loop.create_connection(lambda: Repeater(load.request), "127.0.0.1", proxy.port))[1]
            for _ in range(CONNECTIONS)
        ]
        while sum(one.answered for one in repeaters) < requests:
            await asyncio.sleep(SAMPLE_SECONDS)
            found.times.append(loop.time() - began)
            for name, value in (await look()).items():
                found.series.setdefault(name, []).append(value)
            if any(one.stopped.done() for one in repeaters):
                raise RuntimeError("kvgate closed a connection")
        for one in repeaters:
            one.stop()
        await asyncio.gather(*(one.stopped for one in repeaters))
        await asyncio.sleep(SETTLE_SECONDS)
        after = await look()
    errors = sum((one.errors for one in repeaters), Counter[int]())
    memory = found.series[MEMORY]
    found.figures |= {
        "sockets left": after[SOCKETS] - before[SOCKETS],
        "reservations left": after[RESERVATIONS],
        "MB grown from the first tenth to the last": _mean(memory[-_tenth(memory) :]) - _mean(memory[: _tenth(memory)]),
        "requests failed": sum(one.failed for one in repeaters),
        **{f"  answered {status}": number for status, number in sorted(errors.items())},
        "  requests": sum(one.answered for one in repeaters),
    }


def _tenth(values: list[float]) -> int:
    return max(1, len(values) // 10)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def graph(found: Found) -> str:
    """The page with what `endurance` watched."""
    charts = [
        line_chart(name, {name: list(zip(found.times, values, strict=True))}, colours([name]), "seconds", name)
        for name, values in found.series.items()
    ]
    return f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><div class="charts">{"".join(charts)}</div>\n'


LIMITS: dict[str, Callable[[Bench, Found], Awaitable[None]]] = {
    "ttft": ttft,
    "long-prompt": long_prompt,
    "streams": streams,
    "departures": departures,
}


async def run(bench: Bench, names: list[str], requests: int) -> Found:
    """Measure these, one after the other."""
    found = Found()
    for name in names:
        print(name, flush=True)
        await (endurance(bench, found, requests) if name == "endurance" else LIMITS[name](bench, found))
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = f"{shlex.quote(sys.executable)} -m gateway serve --endpoint {{engine}} --port {{port}}"
    parser.add_argument("--kvgate-cmd", default=command, help="how kvgate starts; {engine} and {port} are filled in")
    known = [*LIMITS, "endurance"]
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--requests", type=int, default=50_000, help="of `endurance`")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement of `ttft` and gaps")
    parser.add_argument("--out", type=Path, help="folder for the figures, as JSON, and the graph of `endurance`")
    options = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
        bench = Bench(options.kvgate_cmd, str(make_tokenizer(Path(made))), options.seconds)
        found = uvloop.run(run(bench, options.only, options.requests))
    aims = {name: aim for name, aim in AIMS.items() if name in found.figures}
    print_table("The limits of the relay", {"kvgate": found.figures, "at most": aims})
    if options.out is not None:
        document = {"provenance": provenance(), "figures": found.figures, "times": found.times, "series": found.series}
        out: Path = options.out
        out.mkdir(parents=True, exist_ok=True)
        (out / "relay_limits.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        if found.series:
            (out / "relay_limits.html").write_text(graph(found))


if __name__ == "__main__":
    main()
