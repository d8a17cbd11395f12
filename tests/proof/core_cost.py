"""What the admission core and its driver cost: CPU time of one request, with nobody and with many waiting.

    python -m tests.proof.core_cost

Interpreted and compiled (`KVGATE_COMPILE=1`, see setup.py), row by row in turn, each in a process of its own. Each
round is the life of one request in a busy pool: an arrival and an end, and its share of the progress reports and of the
scrapes, with streams of 250 tokens in five seconds, or of 5 tokens in 0.1 s. With an empty queue the arrival takes the
room that the end before it left. With a full one it waits, and the end lets the head of the queue go.

The events of streams come from the admission, as they do in the gateway: every stream has a token each 20 ms, and the
admission leaves out the reports that change nothing: all but the first token of a stream and those that begin a block.
Its timer runs in an event loop whose time is the pool's.

The core's part is measured alone, with the same events again. What is left are the driver and the admission: their
notes of every token, their timers, and the choice of reports; without the loop over the tokens, which is not
theirs.
"""

import asyncio
import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import NamedTuple

from gateway.admission.commands import Command, Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointId,
    EndpointUp,
    Event,
    Observed,
    RequestId,
    Verdict,
)
from gateway.admission.policy import Policy
from gateway.pools.admission import Admission
from gateway.pools.driver import Driver

BLOCK = 16
PROMPT = 200
OUTPUT = 250
SHORT_OUTPUT = 5
TOKEN = 0.02
"""Seconds between two tokens of a stream."""
BEST_OF = 3
"""Measurements of each figure: the least counts, as other work on the machine only adds to it."""
Tape = list[tuple[Event | list[RequestId], float]]
"""What a core was told, with its time, and whose next reports were asked for."""


class Pool(NamedTuple):
    """A row of the table."""

    in_flight: int
    queued: int
    endpoints: int = 1
    flows: int = 1
    output: int = OUTPUT
    """Tokens of each answer."""
    room: int = 1
    """How often the KV caches hold all that are in flight: once is full, twice has room for whatever comes."""


class Clock:
    """Seconds since the pool began."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is the pool's. It never runs a timer: the pool does."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.time = clock  # type: ignore[method-assign]


class Core:
    """A controller that keeps its dispatches from the driver, whose asker knows of nobody waiting."""

    def __init__(self, policy: Policy, tape: Tape | None) -> None:
        self.controller = AdmissionController(policy)
        self.dispatched: list[RequestId] = []
        self.tape = tape

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.tape is not None:
            self.tape.append((event, now))
        for command in self.controller.handle(event, now):
            if type(command) is Dispatch:
                self.dispatched.append(command.request)
        return []

    def next_reports(self, requests: Iterable[RequestId]) -> dict[RequestId, float]:
        if self.tape is not None:
            self.tape.append((list(requests), 0.0))
        return self.controller.next_reports(requests)

    @property
    def aborting(self) -> bool:
        return self.controller.aborting

    @property
    def time_may_dispatch(self) -> bool:
        return self.controller.time_may_dispatch


class Saturated:
    """A pool with so many in flight and so many waiting."""

    def __init__(self, row: Pool, clock: Clock, tape: Tape | None) -> None:
        self.policy = Policy(max_requests=10**6, max_bytes=2**50, ttl=1e6, ttft_target=1e6)
        self.clock = clock
        self.core = Core(self.policy, tape)
        self.admission = Admission(lambda _: None)
        self.admission.decider = self.driver = Driver(self.core, clock, self.admission)
        self.each = row.in_flight // row.endpoints
        self.flows, self.output, self.room = row.flows, row.output, row.room
        self.endpoints = [EndpointId(f"e{number}") for number in range(row.endpoints)]
        self.flying: dict[RequestId, int] = {}
        self.arrived = 0
        blocks = int(self.room * self.each * -(-(PROMPT + row.output) // BLOCK) / self.policy.kv_high)
        for endpoint in self.endpoints:
            self.core.handle(EndpointUp(endpoint, Capacity(8192, blocks, BLOCK, max_num_seqs=self.each)), 0.0)
        for _ in range(row.in_flight + row.queued):
            self.arrive()
        for index, request in enumerate(self.flying):  # of all ages, as in a pool that has run for a while
            self.flying[request] = index * row.output // row.in_flight
        self.generate()
        self.admission._flush()

    @property
    def next_batch(self) -> float:
        """When the admission reports to the core next."""
        return inf if self.admission._timer is None else self.admission._due

    def arrive(self) -> None:
        self.arrived += 1
        flow = f"flow {self.arrived % self.flows}"
        self.feed(Arrived(RequestId(self.arrived), Demand((PROMPT,), self.output), flow=flow, body_bytes=1000))

    def finish(self) -> None:
        oldest = next(iter(self.flying))
        del self.flying[oldest]
        self.admission.finish(oldest, Verdict.DONE, self.output)
        self.follow()

    def generate(self) -> None:
        """Every stream has one more token."""
        first_tokens, progress = self.admission.first_tokens, self.admission.progress
        for request, generated in self.flying.items():
            if generated < self.output:
                self.flying[request] = generated + 1
                (progress if generated else first_tokens)(request, generated + 1)

    def count(self) -> None:
        """The same without telling anybody."""
        flying = dict(self.flying)
        for request, generated in flying.items():
            if generated < self.output:
                flying[request] = generated + 1

    def scrape(self) -> None:
        tokens = self.clock.now * self.each / TOKEN
        for endpoint in self.endpoints:
            self.feed(Observed(endpoint, self.clock.now, 0.8 / self.room, self.each, 0, tokens))

    def feed(self, event: Event) -> None:
        self.driver.handle(event)
        self.follow()

    def follow(self) -> None:
        self.flying.update(dict.fromkeys(self.core.dispatched, 0))
        self.core.dispatched.clear()

    def live(self, rounds: int) -> float:
        """Seconds of CPU for so many requests, one after the other, each with its share of progress and scrapes."""
        clock, rate = self.clock, len(self.flying) / (self.output * TOKEN)
        next_token, next_scrape, started = TOKEN, 1.0, process_time()
        for number in range(1, rounds + 1):
            until = number / rate
            while (due := min(next_token, self.next_batch, next_scrape)) <= until:
                clock.now = max(due, clock.now)
                if due == next_token:
                    self.generate()
                    next_token += TOKEN
                elif due == next_scrape:
                    self.scrape()
                    next_scrape += 1.0
                else:
                    self.admission._fire()
            clock.now = until
            self.finish()
            self.arrive()
        return process_time() - started


def played(row: Pool, rounds: int, tape: Tape | None) -> tuple[Saturated, float, int]:
    """A pool that has lived, the seconds that took, and the length of the tape before it."""
    clock = Clock()

    async def live() -> tuple[Saturated, float, int]:
        pool = Saturated(row, clock, tape)
        gc.collect()
        gc.disable()
        before, spent = len(tape or ()), pool.live(rounds)
        gc.enable()
        pool.admission.close()
        return pool, spent, before

    with asyncio.Runner(loop_factory=lambda: Loop(clock)) as runner:
        return runner.run(live())


def replayed(tape: Tape, before: int, policy: Policy) -> float:
    """Seconds that the core alone takes for what it was told after `before`."""
    core = AdmissionController(policy)

    def tell(part: Tape) -> None:
        handle, next_reports = core.handle, core.next_reports
        for told, now in part:
            if type(told) is list:
                next_reports(told)
            else:
                handle(told, now)

    tell(tape[:before])
    gc.collect()
    gc.disable()
    started = process_time()
    tell(tape[before:])
    spent = process_time() - started
    gc.enable()
    return spent


def measure(row: Pool, rounds: int) -> tuple[float, float]:
    """Microseconds of CPU for one request: of the core, and of admission and driver."""
    tape: Tape = []
    pool, _, before = played(row, rounds, tape)
    core = min(replayed(tape, before, pool.policy) for _ in range(BEST_OF))
    everything = min(played(row, rounds, None)[1] for _ in range(BEST_OF))
    started, times = process_time(), max(1, 20_000 // row.in_flight)
    for _ in range(times):
        pool.count()
    tokens = (process_time() - started) / times / row.in_flight * row.output
    return core / rounds * 1e6, ((everything - core) / rounds - tokens) * 1e6


ROWS = (
    Pool(10, 0, output=SHORT_OUTPUT, room=2),
    Pool(1000, 0, output=SHORT_OUTPUT, room=2),
    Pool(10, 0, room=2),
    Pool(1000, 0, room=2),
    Pool(10, 0),
    Pool(10, 10),
    Pool(100, 0),
    Pool(100, 100),
    Pool(1000, 0),
    Pool(1000, 1000),
    Pool(1000, 10_000),
    Pool(1000, 10_000, flows=16),
    Pool(1000, 10_000, endpoints=4),
    Pool(10_000, 10_000, endpoints=16),
)


def measured(row: Pool, packages: Path) -> list[float]:
    """A row of figures, from a process of its own that takes kvgate from this folder."""
    command = [sys.executable, __file__, *map(str, row)]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(figure) for figure in done.stdout.split()]


def main() -> None:
    """Print the table; or one row of it, of the core that this process has."""
    if sys.argv[1:]:
        row = Pool(*map(int, sys.argv[1:]))
        print(*measure(row, rounds=max(500, row.in_flight)))
        return
    from tests.proof.compiled import ROOT, with_compiled_core

    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {sys.platform}; us")
    print(f"{'':46}{'interpreted':>16}{'compiled':>16}")
    print(
        f"{'in flight':>9} {'queued':>8} {'endpoints':>9} {'flows':>5} {'tokens':>6} {'room':>4}"
        + f" {'core':>8} {'driver':>6}" * 2
    )
    with TemporaryDirectory() as folder:
        packages = with_compiled_core(Path(folder))
        for row in ROWS:
            plain, compiled = measured(row, ROOT), measured(row, packages)
            figures = "".join(f" {core:8.1f} {driver:6.1f}" for core, driver in (plain, compiled))
            queued = f"{row.queued:,}" if row.queued else "nobody"
            print(
                f"{row.in_flight:9,} {queued:>8} {row.endpoints:9} {row.flows:5} {row.output:6} {row.room:4}{figures}",
                flush=True,
            )


if __name__ == "__main__":
    main()
