"""Where a request's microseconds go in the gateway, from socket to socket: a table, and a flame graph.

    python -m loadtests.profile

kvgate runs under `loadtests.sampler` on core 0. The engine's stand-in and the clients share core 1. Sampling slows it
by some per cent: what a request costs in all, `loadtests.relay_cost` says.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

import uvloop

from loadtests.figures import print_table
from loadtests.flame import flame_graph
from loadtests.processes import answers, child
from loadtests.relay_cost import LOAD_CORE, PROXY_CORE, WARM_UP_SECONDS, Bench, Load, counted_here, repeat
from loadtests.sampler import LOOP
from tests.fakes.tokenizer import make_tokenizer
from tests.ports import free_port

STAGES: tuple[tuple[str, str], ...] = (
    (LOOP, "event loop and kernel, reading"),
    ("gateway.server.http_protocol:", "client's connection, HTTP in"),
    ("gateway.server.framing:", "client's connection, HTTP in"),
    ("gateway.server.cycle:Cycle.send", "client's connection, answer out"),
    ("gateway.server.cycle:Cycle.whole", "client's connection, answer out"),
    ("gateway.server.cycle:Cycle.write", "client's connection, answer out"),
    ("gateway.relay.response:", "client's connection, answer out"),
    ("gateway.relay.headers:towards_client", "client's connection, answer out"),
    ("gateway.server.cycle:", "client's connection, HTTP in"),
    ("gateway.server.asgi:", "client's connection, HTTP in"),
    ("gateway.relay.client_departure:", "client's connection, HTTP in"),
    ("gateway.relay.body_intake:", "client's connection, HTTP in"),
    ("gateway.wire.request:", "read the request"),
    ("gateway.relay.fingerprint:", "read the request"),
    ("gateway.relay.client_identity:", "read the request"),
    ("gateway.tokens.tokenizer:backend_encoded", "count: tokenize"),
    ("gateway.tokens.render:", "count: render the template"),
    ("gateway.tokens.template:", "count: render the template"),
    ("gateway.tokens.fast_tokenizer:", "count: render the template"),
    ("gateway.tokens.message_shape:", "count: render the template"),
    ("gateway.tokens.prefix:", "count: hash the prefixes"),
    ("gateway.tokens.", "count: the rest"),
    ("gateway.pools.", "driver of the core"),
    ("gateway.admission.", "admission core"),
    ("gateway.upstream.http_upstream:", "engine's connection"),
    ("gateway.upstream.connection:", "engine's connection"),
    ("gateway.relay.headers:towards_endpoint", "engine's connection"),
    ("gateway.relay.flights:", "watch over the flight"),
    ("gateway.endpoints.", "watch over the flight"),
    ("gateway.app.", "watch over the flight"),
    ("gateway.wire.", "read the answer"),
    ("gateway.ops.logs:", "access log"),
    ("gateway.ops.", "metrics"),
    ("gateway.relay.exchange:Reporter", "metrics"),
    ("gateway.relay.", "the way between them"),
)
"""The stage of a frame, by how its name begins; the first row that fits. Other frames belong to the one that called."""
REST = "all else"

Stacks = Mapping[tuple[str, ...], float]


def stage(stack: tuple[str, ...]) -> str:
    """What a stack is at, by its innermost frame that says so."""
    for frame in reversed(stack):
        for beginning, name in STAGES:
            if frame.startswith(beginning):
                return name
    return REST


def by_stage(stacks: Stacks) -> dict[str, float]:
    """The sum of each stage, the dearest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for stack, spent in stacks.items():
        sums[stage(stack)] += spent
    return _most(sums)


def dearest(stacks: Stacks, most: int) -> dict[str, float]:
    """The functions of kvgate with the most of their own, what they call of libraries included."""
    sums: defaultdict[str, float] = defaultdict(float)
    for stack, spent in stacks.items():
        sums[next((frame for frame in reversed(stack) if frame.startswith(("gateway.", LOOP))), REST)] += spent
    return _most(sums, most)


def _most(sums: Mapping[str, float], most: int | None = None) -> dict[str, float]:
    return dict(sorted(sums.items(), key=itemgetter(1), reverse=True)[:most])


def read(path: Path, requests: int) -> dict[tuple[str, ...], float]:
    """The sampler's file, in microseconds per request, from the event loop inwards."""
    found = {}
    for line in path.read_text().splitlines():
        names, _, seconds = line.rpartition(" ")
        stack = tuple(names.split(";"))
        outside = [number for number, frame in enumerate(stack) if frame.startswith("asyncio.runners:")]
        found[stack[outside[-1] + 1 :] if outside else stack] = 1e6 * float(seconds) / requests
    return found


async def profiled(bench: Bench, load: Load, folder: Path) -> tuple[int, Path]:
    """Profile kvgate under plain requests; return their number and the sampler's file."""
    out, port, log = folder / "stacks", free_port(), folder / "kvgate.log"
    async with bench.engine(load, folder) as engine:
        argv = [sys.executable, "-m", "loadtests.sampler", str(out), "serve", "--port", str(port)]
        argv += ["--endpoint", f"http://127.0.0.1:{engine.port}", "--tokenizer", str(bench.tokenizer)]
        with child(argv, PROXY_CORE, log) as process:
            await answers(f"http://127.0.0.1:{port}/readyz", process, log)
            await counted_here(port)
            await repeat(port, load.request, WARM_UP_SECONDS)
            os.kill(process.pid, signal.SIGUSR2)
            requests = await repeat(port, load.request, bench.seconds)
            os.kill(process.pid, signal.SIGUSR2)
            async with asyncio.timeout(bench.seconds + 10):
                while not out.exists():  # noqa: ASYNC110  # another process writes it
                    await asyncio.sleep(0.1)
    return requests, out


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", action="store_true", help="requests with token ids on /v1/completions, not chats")
    parser.add_argument("--tokenizer", help="folder of a tokenizer; else one is made")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the profile")
    parser.add_argument("--out", type=Path, default=Path("profile.svg"), help="where the flame graph goes")
    options = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
        folder = Path(made)
        bench = Bench("", options.tokenizer or str(make_tokenizer(folder)), options.seconds)
        load = Load(0, rate=200.0, ids=options.ids)
        requests, out = uvloop.run(profiled(bench, load, folder))
        stacks = read(out, requests)
    whole = sum(stacks.values())
    stages = by_stage(stacks)
    columns = {"us": {**stages, "all": whole}, "%": {name: 100 * us / whole for name, us in stages.items()}}
    print_table(f"Where a request's microseconds go, over {requests:,} requests", columns)
    print_table("The dearest functions, with what they call of libraries", {"us": dearest(stacks, 25)})
    options.out.write_text(flame_graph(stacks))
    print(f"flame graph: {options.out}")


if __name__ == "__main__":
    main()
