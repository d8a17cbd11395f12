"""The cost of the relay: kvgate's CPU per streamed event and per plain request, beside other proxies' in the same run.

    python -m loadtests.relay_cost

kvgate has all on that it has by default: it counts, admits, measures and logs. Beside it the routers of vLLM and SGLang
are measured where they are installed (`pip install vllm-router sglang-router`); they only relay. The proxy under test
has core 0 to itself. The engine's stand-in and the load client share core 1. CPU is that of the proxy's whole process
tree. Streams are measured while all of them run. Each is then read to its end and checked to be intact and in order.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from loadtests.figures import medians, print_table, readable
from loadtests.nginx import nginx_command
from loadtests.processes import answers, child, cpu_seconds, cpu_times
from loadtests.provenance import provenance
from loadtests.raw_client import NUMBER, Repeater, Stream, Tally, post
from tests.fakes.tokenizer import make_tokenizer
from tests.ports import free_port

PROXY_CORE, LOAD_CORE = 0, 1
CONNECTIONS = 32
"""Connections for plain requests."""
WARM_UP_SECONDS = 2.0
SETTLE_SECONDS = 1.0
"""Seconds that streams run before and after the measurement."""
START_SECONDS = 60.0
QUIET_SHARE = 0.05
"""Share of a core that an idle proxy may use before its measurement begins."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONVERSATION: dict[str, object] = {"messages": [{"role": "user", "content": NUMBER + " how now brown cow" * 60}]}
"""About 1 KB."""
IDS = [100 + number % 300 for number in range(250)]
"""A prompt of token ids, about 1 KB: there is nothing to tokenize."""
ENGINE = (
    "-m tests.fakes.vllm --num-blocks 400000 --max-num-seqs 8192 --max-batched-tokens 200000 --max-model-len 200000"
)
PEERS = {
    "vllm-router": "vllm-router --log-level error",
    "sglang-router": "sglang-router launch --log-level error",
}
"""Routers in Rust that do the same, and how each starts."""
REFUSE_IDS = ("sglang-router",)
"""Those that answer 422 to a prompt of token ids."""
_OF_PEERS = "--host 127.0.0.1 --port {port} --prometheus-port {other} --worker-urls {engine} --policy round_robin"


@dataclass(frozen=True, slots=True)
class Load:
    """A number of streams and their events per second; no streams for plain requests.

    Attributes:
        phases: turns in which the events of all streams come: in one, or spread over time as from so many engines.
        ids: whether the plain requests bring token ids, not a chat.
    """

    streams: int
    rate: float = 50.0
    phases: int = 1
    ids: bool = False

    @property
    def label(self) -> str:
        """The name of this load's figure."""
        if not self.streams:
            return "us per plain request, token ids" if self.ids else "us per plain request"
        return f"us per event, {self.streams:,} streams" + (f" in {self.phases} phases" if self.phases > 1 else "")

    @property
    def request(self) -> bytes:
        """A plain request."""
        prompt: dict[str, object] = {"prompt": IDS} if self.ids else CONVERSATION
        return post(COMPLETIONS if self.ids else CHAT, asked(prompt, stream=False, max_tokens=1))


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU in microseconds, in all and in the kernel."""

    us: float
    kernel: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The constants of a run."""

    kvgate: str
    tokenizer: str | None
    seconds: float

    @contextlib.asynccontextmanager
    async def engine(self, load: Load, folder: Path) -> AsyncIterator[Proxy]:
        """The engine's stand-in, with a decode step as often as the load's streams have events."""
        port, log = free_port(), folder / "engine.log"
        argv = [sys.executable, *ENGINE.split(), "--port", str(port), "--step-seconds", str(1 / load.rate)]
        argv += ["--phases", str(load.phases)]
        argv += ["--tokenizer", self.tokenizer, "--root", self.tokenizer] if self.tokenizer else []
        with child(argv, LOAD_CORE, log) as process:
            await answers(f"http://127.0.0.1:{port}/health", process, log)
            yield Proxy(process.pid, port)

    @contextlib.asynccontextmanager
    async def proxy(self, name: str, engine: Proxy, folder: Path) -> AsyncIterator[Proxy]:
        """The proxy with this name in front of an engine; "direct" is the engine itself."""
        if name == "direct":
            yield engine
            return
        port, log = free_port(), folder / f"{name}.log"
        if name == "nginx":
            argv = nginx_command(folder, engine.port, port)
        elif name in PEERS:
            url = f"http://127.0.0.1:{engine.port}"
            argv = shlex.split(f"{PEERS[name]} {_OF_PEERS}".format(engine=url, port=port, other=free_port()))
        else:
            argv = shlex.split(self.kvgate.format(engine=f"http://127.0.0.1:{engine.port}", port=port))
            argv += ["--tokenizer", self.tokenizer] if self.tokenizer else []
        with child(argv, PROXY_CORE, log) as process:
            ready = "/readyz" if name == "kvgate" else "/health"
            await answers(f"http://127.0.0.1:{port}{ready}", process, log)
            if name == "kvgate" and self.tokenizer:
                await counted_here(port)
            await repeat(port, Load(0).request, WARM_UP_SECONDS)
            await quiet(process.pid)
            yield Proxy(process.pid, port)

    async def measure(self, name: str, load: Load) -> Cost:
        """CPU per event or request, measured on fresh processes."""
        with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
            folder = Path(made)
            async with self.engine(load, folder) as engine, self.proxy(name, engine, folder) as proxy:
                if load.streams:
                    return await self._streams(proxy, load)
                return await self._requests(proxy, load)

    async def _streams(self, proxy: Proxy, load: Load) -> Cost:
        loop = asyncio.get_running_loop()
        tokens = int(load.rate * (self.seconds + 2 * SETTLE_SECONDS))
        request = post(CHAT, asked(CONVERSATION, stream=True, max_tokens=tokens))
        tally = Tally(load.streams)
        streams = [
            (await loop.create_connection(lambda: Stream(request, tally), "127.0.0.1", proxy.port))[1]
            for _ in range(load.streams)
        ]
        await asyncio.wait_for(tally.all_started.wait(), START_SECONDS)
        events, before = tally.events, cpu_times(proxy.pid)
        await asyncio.sleep(self.seconds)
        cost = _cost(before, cpu_times(proxy.pid), tally.events - events)
        await asyncio.gather(*(stream.ended for stream in streams))
        for stream in streams:
            if not (stream.status == 200 and stream.check.intact and stream.check.events == tokens):
                raise RuntimeError(f"a stream broke after {stream.check.events} of {tokens}: {stream.check.error!r}")
        return cost

    async def _requests(self, proxy: Proxy, load: Load) -> Cost:
        before = cpu_times(proxy.pid)
        done = await repeat(proxy.port, load.request, self.seconds)
        return _cost(before, cpu_times(proxy.pid), done)


def _cost(before: tuple[float, float], after: tuple[float, float], number: int) -> Cost:
    user, kernel = (1e6 * (late - early) / number for early, late in zip(before, after, strict=True))
    return Cost(user + kernel, kernel)


async def counted_here(port: int) -> None:
    """Wait until kvgate counts prompts itself: loading a tokenizer takes it seconds.

    Raises:
        TimeoutError: it does not.
    """
    async with asyncio.timeout(START_SECONDS):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(Load(0).request)
            head = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            if b"x-kvgate-counted: local" in head:
                return
            await asyncio.sleep(0.2)


async def repeat(port: int, request: bytes, seconds: float) -> int:
    """Send a plain request repeatedly on a few connections and count the answers.

    Raises:
        RuntimeError: an answer was not 200.
    """
    loop = asyncio.get_running_loop()
    repeaters = [
        (await loop.create_connection(lambda: Repeater(request), "127.0.0.1", port))[1] for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds)
    for one in repeaters:
        one.stop()
    await asyncio.gather(*(one.stopped for one in repeaters))
    failed = sum(one.failed for one in repeaters)
    if failed:
        raise RuntimeError(f"{failed} of {sum(one.answered for one in repeaters)} plain requests failed")
    return sum(one.answered for one in repeaters)


async def quiet(pid: int) -> None:
    """Wait until a process has finished its work at start, which goes on after it first answers a probe.

    Raises:
        RuntimeError: it is still busy after half a minute.
    """
    for _ in range(30):
        before = cpu_seconds(pid)
        await asyncio.sleep(1.0)
        if cpu_seconds(pid) - before < QUIET_SHARE:
            return
    raise RuntimeError(f"process {pid} uses more than {QUIET_SHARE:.0%} of a core with nothing to do")


def asked(prompt: Mapping[str, object], *, stream: bool, max_tokens: int) -> bytes:
    """The body of a request for exactly so many tokens."""
    options = {"model": "fake", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    return msgspec.json.encode({**options, **prompt})


KERNEL = "in the kernel"
LOADS = (
    Load(64),
    Load(256),
    Load(1000, rate=20.0),
    Load(64, phases=10),
    Load(256, phases=10),
    Load(1000, rate=20.0, phases=10),
    Load(0, rate=200.0),
    Load(0, rate=200.0, ids=True),
)


async def run(
    bench: Bench, proxies: list[str], rounds: int, loads: Sequence[Load] = LOADS
) -> dict[str, list[dict[str, float]]]:
    """Run every load on every proxy in turn, `rounds` times."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in proxies}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for name in proxies:
            results[name].append({})
        for load in loads:
            for name in proxies:
                if load.ids and name in REFUSE_IDS:
                    continue
                cost = await bench.measure(name, load)
                results[name][-1] |= {load.label: cost.us, f"  {KERNEL}, {load.label}": cost.kernel}
    return results


def report(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Print the medians side by side, with kvgate's share of nginx's, and return them."""
    columns = {name: medians(rounds) for name, rounds in results.items()}
    print_table("CPU of the proxy, median of the rounds", columns)
    peers = [name for name in PEERS if name in columns]
    for load in (load for load in LOADS if load.label in columns.get("kvgate", {})):
        costs = {name: column[load.label] for name, column in columns.items() if load.label in column}
        beside = ["nginx"] if "nginx" in costs else []
        if measured := [name for name in peers if name in costs]:
            beside.append(min(measured, key=costs.__getitem__))
        for other in beside:
            print(f"{load.label}: kvgate is {readable(costs['kvgate'] / costs[other])} x {other}")
    return columns


def installed(proxies: Sequence[str]) -> list[str]:
    """The proxies without the peers that are not on the path; says which are not."""
    missing = [name for name in proxies if name in PEERS and shutil.which(name) is None]
    for name in missing:
        print(f"{name} is not installed (pip install {name}): it is not measured")
    return [name for name in proxies if name not in missing]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = (
        f"{shlex.quote(str(Path(sys.executable).with_name('kvgate')))} serve --endpoint {{engine}} --port {{port}}"
    )
    parser.add_argument("--kvgate-cmd", default=command, help="how kvgate starts; {engine} and {port} are filled in")
    known = ("nginx", "kvgate", *PEERS)
    parser.add_argument(
        "--proxies", default=",".join(known), help=f"which to measure, of {', '.join(known)} and direct"
    )
    parser.add_argument(
        "--tokenizer", help="folder of a tokenizer for kvgate and the engine's stand-in; else one is made"
    )
    parser.add_argument(
        "--engine-counts", action="store_true", help="plain requests alone, to a kvgate without a tokenizer"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--out", type=Path, help="write every figure here, as JSON")
    options = parser.parse_args()
    proxies = installed(options.proxies.split(","))
    if "nginx" in proxies and shutil.which("nginx") is None:
        parser.error("nginx is not installed (Debian: apt-get install nginx-light)")
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
        tokenizer = None if options.engine_counts else options.tokenizer or str(make_tokenizer(Path(made)))
        loads = [load for load in LOADS if not (load.streams or load.ids)] if options.engine_counts else LOADS
        bench = Bench(options.kvgate_cmd, tokenizer, options.seconds)
        results = uvloop.run(run(bench, proxies, options.rounds, loads))
    columns = report(results)
    if options.out is not None:
        document = {"provenance": provenance(), "medians": columns, "rounds": results}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


if __name__ == "__main__":
    main()
