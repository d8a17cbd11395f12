"""What an owner behind a socket costs: CPU time of one request, in the owner and in the fronts, with many in flight.

    python -m tests.proof.tier_cost

Each request is one stream of 250 tokens in five seconds: it arrives at one of two fronts, waits, is dispatched, has its
tokens reported in batches of 25 ms, and ends. Front and owner are the real ones, with their frames; only the socket is
not there. Monitors are not asked. Interpreted, and with the compiled core.
"""

import asyncio
import gc
import os
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from types import SimpleNamespace
from typing import Any

from gateway.admission.controller import AdmissionController
from gateway.admission.events import FRONT_BITS, Arrived, Capacity, Demand, EndpointId, Observed, RequestId, Verdict
from gateway.admission.policy import Policy
from gateway.app.parent import Parent
from gateway.endpoints.identity import Identity
from gateway.pools.admission import PROGRESS_INTERVAL
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.tier.hall import Hall
from gateway.tier.line import Line
from gateway.tier.owner_link import Link

BLOCK = 16
PROMPT = 200
OUTPUT = 250
STREAM_SECONDS = 5.0
TOKEN = STREAM_SECONDS / OUTPUT
FRONTS = 2
HERE = EndpointId("here:1")


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None: ...

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data


class Front:
    """A front, its line, and the owner's end of it."""

    def __init__(self, number: int, tier: "Tier") -> None:
        follower: Any = SimpleNamespace(up=lambda *_: None, down=lambda *_: None)
        self.ids = number << FRONT_BITS
        self.link = Link(
            number,
            tier.connect,
            follower,
            clock=lambda: tier.now,
            progressed=lambda _: None,
            patience=lambda: 1e9,
            figures=bytes,
            parent=Parent(),
        )
        self.link.watch(HERE)
        self.flying: dict[RequestId, int] = {}
        self.mine = self.theirs = Wire()
        self.line: Line[Any]
        self.owner: Line[Any]


class Tier:
    """An owner and its fronts, moved by hand, with the CPU time of both sides."""

    def __init__(self, in_flight: int) -> None:
        self.now = 0.0
        self.owner_spent = self.front_spent = 0.0
        self.arrived = 0
        self.hall = Hall(FRONTS)
        policy = Policy(max_requests=10**6, max_bytes=2**50, ttl=1e6, ttft_target=1e6)
        self.cores = Cores(
            lambda model, _root: Driver(AdmissionController(policy), lambda: self.now, self.hall.asker(model)),
            self.hall,
        )
        monitor = SimpleNamespace(
            probed=asyncio.Event(), serving=True, on_trial=False, keeps=True, drained=False, keyed=False
        )
        monitors: Any = {HERE: monitor}
        monitor.probed.set()
        self.hall.begin(self.cores, monitors, SimpleNamespace())
        self.cores.add(HERE, None)
        blocks = int(in_flight * -(-(PROMPT + OUTPUT) // BLOCK) / policy.kv_high)
        identity = Identity(("m",), (), None, 8192, "0.32.0")
        self.cores.up(HERE, identity, Capacity(8192, blocks, BLOCK, max_num_seqs=in_flight))
        self.fronts = [Front(number + 1, self) for number in range(FRONTS)]

    async def connect(self, make: Any) -> None:
        """Join a front's line to one of the hall's."""
        line, owner = make(), self.hall.line()
        front = next(front for front in self.fronts if not hasattr(front, "line"))
        front.line, front.owner, front.mine, front.theirs = line, owner, Wire(), Wire()
        line.connection_made(front.mine)
        owner.connection_made(front.theirs)

    async def joined(self) -> list[asyncio.Task[None]]:
        links = [asyncio.create_task(front.link.run()) for front in self.fronts]
        while not all(front.link.connected.is_set() for front in self.fronts):
            await asyncio.sleep(0)
            self.carry()
        return links

    def carry(self) -> None:
        """Carry what was written to the other side, until nothing is left. A side with nothing to say costs nothing."""
        moved = True
        while moved:
            moved = False
            for front in self.fronts:
                if front.line._unsent:
                    start = process_time()
                    front.line._flush()
                    half = process_time()
                    front.owner.data_received(front.mine.take())
                    self.owner_spent += process_time() - half
                    self.front_spent += half - start
                    moved = True
                if front.owner._unsent:
                    start = process_time()
                    front.owner._flush()
                    half = process_time()
                    front.line.data_received(front.theirs.take())
                    self.front_spent += process_time() - half
                    self.owner_spent += half - start
                    moved = True
        for front in self.fronts:
            for request, asked in front.link._carried.items():
                if asked.endpoint is not None:
                    front.flying.setdefault(request, 0)

    def arrive(self) -> None:
        self.arrived += 1
        front = self.fronts[self.arrived % FRONTS]
        prefix = tuple((64 * part, hash((self.arrived, part)) & 2**63 - 1) for part in range(1, 4))
        arrival = Arrived(
            RequestId(front.ids + self.arrived), Demand((PROMPT,), OUTPUT), flow="flow", body_bytes=1000, prefix=prefix
        )
        start = process_time()
        admission = front.link.admission("m")
        admission._waiting[arrival.request] = asyncio.get_running_loop().create_future()
        admission.decider.handle(arrival)
        self.front_spent += process_time() - start

    def finish(self) -> None:
        front = max(self.fronts, key=lambda front: len(front.flying))
        oldest = next(iter(front.flying))
        del front.flying[oldest]
        start = process_time()
        front.link.admission("m").finish(oldest, Verdict.DONE, OUTPUT)
        self.front_spent += process_time() - start

    def generate(self) -> None:
        for front in self.fronts:
            progress = front.link.admission("m").progress
            for request, generated in front.flying.items():
                if generated < OUTPUT:
                    front.flying[request] = generated + 1
                    progress(request, generated + 1)

    def report(self) -> None:
        start = process_time()
        for front in self.fronts:
            front.link.admission("m")._flush()
        self.front_spent += process_time() - start


async def measure(in_flight: int, rounds: int) -> tuple[float, float]:
    """Microseconds of CPU for one request: in the owner, and in its front for the owner."""
    tier = Tier(in_flight)
    links = await tier.joined()
    for _ in range(2 * in_flight):
        tier.arrive()
    tier.carry()
    for front in tier.fronts:  # of all ages, as in a pool that has run for a while
        for index, request in enumerate(front.flying):
            front.flying[request] = index * OUTPUT // len(front.flying)
    tier.generate()
    tier.report()
    tier.carry()
    rate = in_flight / STREAM_SECONDS
    next_token, next_batch, next_scrape = TOKEN, PROGRESS_INTERVAL, 1.0
    gc.collect()
    gc.freeze()  # as kvgate does once it is loaded; the fronts' objects are in no owner's process
    tier.owner_spent = tier.front_spent = 0.0
    for number in range(1, rounds + 1):
        until = number / rate
        while (due := min(next_token, next_batch, next_scrape)) <= until:
            tier.now = due
            if due == next_token:
                tier.generate()
                next_token += TOKEN
            elif due == next_batch:
                tier.report()
                tier.carry()
                next_batch += PROGRESS_INTERVAL
            else:
                start = process_time()
                tokens = tier.now * in_flight * OUTPUT / STREAM_SECONDS
                tier.cores.observed(Observed(HERE, tier.now, 0.8, in_flight, 0, tokens))
                tier.owner_spent += process_time() - start
                next_scrape += 1.0
        tier.now = until
        tier.arrive()
        tier.finish()
        tier.carry()
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)
    tier.cores.close()
    for front in tier.fronts:
        front.link.close()
    return tier.owner_spent / rounds * 1e6, tier.front_spent / rounds * 1e6


def main() -> None:
    """Print the table; or one row of it, of the core that this process has."""
    if sys.argv[1:]:
        print(*asyncio.run(measure(int(sys.argv[1]), rounds=2000)))
        return
    from tests.proof.compiled import ROOT, with_compiled_core

    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {sys.platform}; us")
    print(f"{'':>9}{'interpreted':^18}{'compiled':^18}")
    print(f"{'in flight':>9}" + f"{'owner':>9}{'front':>9}" * 2)
    with TemporaryDirectory() as folder:
        packages = with_compiled_core(Path(folder))
        for in_flight in (10, 100, 1000):
            figures = [_measured(in_flight, where) for where in (ROOT, packages)]
            print(f"{in_flight:9}" + "".join(f"{owner:9.1f}{front:9.1f}" for owner, front in figures), flush=True)


def _measured(in_flight: int, packages: Path) -> tuple[float, float]:
    """A row of figures, from a process of its own that takes kvgate from this folder."""
    command = [sys.executable, __file__, str(in_flight)]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    owner, front = map(float, done.stdout.splitlines()[-1].split())
    return owner, front


if __name__ == "__main__":
    main()
