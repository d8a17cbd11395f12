"""What the admission core costs: CPU time of one request's events, with many in flight and many waiting.

    python -m tests.proof.core_cost

Interpreted and compiled (`KVGATE_COMPILE=1`, see setup.py), row by row in turn, each in a process of its own. Each
round is the life of one request in a saturated pool: an arrival that has to wait, one end that lets the head of the
queue go, and its share of the progress reports and of the scrapes, with streams of five seconds each. The events of
streams come from the admission, as they do in the gateway: every stream has a token each 20 ms, a batch goes out each
25 ms, and the admission leaves out what is no news, which are all but the first token of a stream and the one that
begins a block of 16. What admission and driver take themselves, for their notes of every token and for choosing the
news, is shown last.
"""

import asyncio
import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

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
from gateway.pools.admission import PROGRESS_INTERVAL, Admission
from gateway.pools.driver import Driver

BLOCK = 16
PROMPT = 200
OUTPUT = 250
STREAM_SECONDS = 5.0
TOKEN = STREAM_SECONDS / OUTPUT


class Timed:
    """A controller that times itself, and keeps its dispatches from the driver, whose asker knows of nobody waiting."""

    def __init__(self, policy: Policy) -> None:
        self.controller = AdmissionController(policy)
        self.dispatched: list[RequestId] = []
        self.spent = 0.0

    def handle(self, event: Event, now: float) -> list[Command]:
        start = process_time()
        commands = self.controller.handle(event, now)
        self.spent += process_time() - start
        self.dispatched += [command.request for command in commands if isinstance(command, Dispatch)]
        return []

    def news(self, requests: Iterable[RequestId]) -> dict[RequestId, float]:
        start = process_time()
        news = self.controller.news(requests)
        self.spent += process_time() - start
        return news

    @property
    def aborting(self) -> bool:
        return self.controller.aborting


class Saturated:
    """A pool with so many in flight and so many waiting."""

    def __init__(self, in_flight: int, queued: int, endpoints: int, flows: int) -> None:
        policy = Policy(max_requests=10**6, max_bytes=2**50, ttl=1e6, ttft_target=1e6)
        self.now = 0.0
        self.core = Timed(policy)
        self.admission = Admission(lambda _: None)
        self.admission.decider = self.driver = Driver(self.core, lambda: self.now, self.admission)
        self.each = in_flight // endpoints
        self.flows = flows
        self.endpoints = [EndpointId(f"e{number}") for number in range(endpoints)]
        self.flying: dict[RequestId, int] = {}
        self.arrived = 0
        blocks = int(self.each * -(-(PROMPT + OUTPUT) // BLOCK) / policy.kv_high)
        for endpoint in self.endpoints:
            self.core.handle(EndpointUp(endpoint, Capacity(8192, blocks, BLOCK, max_num_seqs=self.each)), 0.0)
        for _ in range(in_flight + queued):
            self.arrive()
        for index, request in enumerate(self.flying):  # of all ages, as in a pool that has run for a while
            self.flying[request] = index * OUTPUT // in_flight
        self.generate()
        self.admission._flush()

    def arrive(self) -> None:
        self.arrived += 1
        flow = f"flow {self.arrived % self.flows}"
        self.feed(Arrived(RequestId(self.arrived), Demand((PROMPT,), OUTPUT), flow=flow, body_bytes=1000))

    def finish(self) -> None:
        oldest = next(iter(self.flying))
        del self.flying[oldest]
        self.admission.finish(oldest, Verdict.DONE, OUTPUT)
        self.follow()

    def generate(self) -> None:
        """Every stream has one more token."""
        progress = self.admission.progress
        for request, generated in self.flying.items():
            if generated < OUTPUT:
                self.flying[request] = generated + 1
                progress(request, generated + 1)

    def scrape(self) -> None:
        tokens = self.now * self.each * OUTPUT / STREAM_SECONDS
        for endpoint in self.endpoints:
            self.feed(Observed(endpoint, self.now, 0.8, self.each, 0, tokens))

    def feed(self, event: Event) -> None:
        self.driver.handle(event)
        self.follow()

    def follow(self) -> None:
        self.flying.update(dict.fromkeys(self.core.dispatched, 0))
        self.core.dispatched.clear()


async def measure(in_flight: int, queued: int, endpoints: int, flows: int, rounds: int) -> tuple[float, float, float]:
    """Microseconds of CPU for one request.

    In the core for its arrival and end, and for its share of progress and scrapes; in admission and driver
    for its progress.
    """
    pool = Saturated(in_flight, queued, endpoints, flows)
    rate = in_flight / STREAM_SECONDS
    next_token, next_batch, next_scrape = TOKEN, PROGRESS_INTERVAL, 1.0
    turnover = reports = driving = 0.0
    gc.collect()
    for number in range(1, rounds + 1):
        until = number / rate
        pool.core.spent = 0.0
        while (due := min(next_token, next_batch, next_scrape)) <= until:
            pool.now = due
            start, spent = process_time(), pool.core.spent
            if due == next_token:
                pool.generate()
                next_token += TOKEN
            elif due == next_batch:
                pool.admission._flush()
                next_batch += PROGRESS_INTERVAL
            else:
                pool.scrape()
                next_scrape += 1.0
            driving += process_time() - start - (pool.core.spent - spent)
        reports += pool.core.spent
        pool.core.spent = 0.0
        pool.now = until
        pool.arrive()
        pool.finish()
        turnover += pool.core.spent
    pool.admission.close()
    return turnover / rounds * 1e6, reports / rounds * 1e6, driving / rounds * 1e6


ROWS = (
    (10, 10, 1, 1),
    (100, 100, 1, 1),
    (100, 1000, 1, 1),
    (1000, 1000, 1, 1),
    (1000, 10_000, 1, 1),
    (1000, 10_000, 1, 16),
    (1000, 10_000, 4, 1),
    (10_000, 10_000, 16, 1),
)


def measured(row: tuple[int, ...], packages: Path) -> list[float]:
    """A row of figures, from a process of its own that takes kvgate from this folder."""
    command = [sys.executable, __file__, *map(str, row)]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(figure) for figure in done.stdout.split()]


def main() -> None:
    """Print the table; or one row of it, of the core that this process has."""
    if sys.argv[1:]:
        in_flight, queued, endpoints, flows = map(int, sys.argv[1:])
        print(*asyncio.run(measure(in_flight, queued, endpoints, flows, rounds=max(2000, in_flight))))
        return
    from tests.proof.compiled import ROOT, with_compiled_core

    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {sys.platform}; us")
    print(f"{'':33}{'interpreted':^32}{'compiled':^32}")
    each = f"{'arrive+end':>11} {'progress':>8} {'sum':>6}"
    print(f"{'in flight':>9} {'queued':>7} {'endpoints':>9} {'flows':>5}{each}{each} {'driver':>7}")
    with TemporaryDirectory() as folder:
        packages = with_compiled_core(Path(folder))
        for row in ROWS:
            plain, compiled = measured(row, ROOT), measured(row, packages)
            figures = "".join(
                f"{end:11.1f} {progress:8.1f} {end + progress:6.1f}" for end, progress, _ in (plain, compiled)
            )
            print(f"{row[0]:9} {row[1]:7} {row[2]:9} {row[3]:5}{figures} {plain[2]:7.1f}", flush=True)


if __name__ == "__main__":
    main()
