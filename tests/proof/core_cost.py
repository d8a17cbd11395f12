"""What the admission core costs: CPU time of one request's events, with many in flight and many waiting.

    python tests/proof/core_cost.py

Each round is the life of one request in a saturated pool: an arrival that has to wait, one end that lets the head of
the queue go, and its share of the progress reports (one report of everybody in flight each 50 ms, at 20 requests a
second for every 100 in flight: five seconds of stream each).
"""

import gc
import platform
import sys
from time import process_time

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointId,
    EndpointUp,
    Event,
    Finished,
    Observed,
    Progress,
    RequestId,
    Verdict,
)
from gateway.admission.policy import Policy

BLOCK = 16
PROMPT = 200
OUTPUT = 250
REPORT = 0.05
STREAM_SECONDS = 5.0


class Saturated:
    """A pool with so many in flight and so many waiting, and the CPU time its core has taken so far, seconds."""

    def __init__(self, in_flight: int, queued: int, endpoints: int, flows: int) -> None:
        policy = Policy(max_requests=10**6, max_bytes=2**50, ttl=1e6, ttft_target=1e6)
        self.controller = AdmissionController(policy)
        self.each = in_flight // endpoints
        self.flows = flows
        self.endpoints = [EndpointId(f"e{number}") for number in range(endpoints)]
        self.flying: dict[RequestId, int] = {}
        self.arrived = 0
        self.spent = 0.0
        blocks = int(self.each * -(-(PROMPT + OUTPUT) // BLOCK) / policy.kv_high)
        for endpoint in self.endpoints:
            self.feed(EndpointUp(endpoint, Capacity(8192, blocks, BLOCK, max_num_seqs=self.each)), 0.0)
        for _ in range(in_flight + queued):
            self.arrive(0.0)
        for index, request in enumerate(self.flying):  # of all ages, as in a pool that has run for a while
            self.flying[request] = 1 + index * OUTPUT // in_flight
        self.report(0.0)

    def feed(self, event: Event, now: float) -> None:
        start = process_time()
        commands = self.controller.handle(event, now)
        self.spent += process_time() - start
        for command in commands:
            if isinstance(command, Dispatch):
                self.flying[command.request] = 0

    def arrive(self, now: float) -> None:
        self.arrived += 1
        flow = f"flow {self.arrived % self.flows}"
        self.feed(Arrived(RequestId(self.arrived), Demand((PROMPT,), OUTPUT), flow=flow, body_bytes=1000), now)

    def finish(self, now: float) -> None:
        oldest = next(iter(self.flying))
        del self.flying[oldest]
        self.feed(Finished(oldest, Verdict.DONE, OUTPUT), now)

    def report(self, now: float) -> None:
        self.feed(Progress(tuple(self.flying.items())), now)

    def scrape(self, now: float, tokens: float) -> None:
        for endpoint in self.endpoints:
            self.feed(Observed(endpoint, now, 0.8, self.each, 0, tokens / len(self.endpoints)), now)


def measure(in_flight: int, queued: int, endpoints: int, flows: int, rounds: int) -> tuple[float, float]:
    """Microseconds of CPU for one request: arrival and end, and its share of progress and scrapes."""
    pool = Saturated(in_flight, queued, endpoints, flows)
    rate = in_flight / STREAM_SECONDS
    now, next_report, next_scrape = 0.0, REPORT, 1.0
    turnover = reports = 0.0
    gc.collect()
    for number in range(rounds):
        now += 1 / rate
        pool.spent = 0.0
        pool.arrive(now)
        pool.finish(now)
        turnover += pool.spent
        pool.spent = 0.0
        while next_report <= now:
            grown = int(OUTPUT * REPORT / STREAM_SECONDS)
            pool.flying = {request: min(OUTPUT, seen + grown) for request, seen in pool.flying.items()}
            pool.report(now)
            next_report += REPORT
        if next_scrape <= now:
            pool.scrape(now, number * OUTPUT)
            next_scrape += 1.0
        reports += pool.spent
    return turnover / rounds * 1e6, reports / rounds * 1e6


def main() -> None:
    """Print the table."""
    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {sys.platform}")
    print(
        f"{'in flight':>9} {'queued':>7} {'endpoints':>9} {'flows':>5} {'arrive+end us':>14} {'progress us':>12} "
        f"{'sum us':>8}"
    )
    for in_flight, queued, endpoints, flows in (
        (10, 10, 1, 1),
        (100, 100, 1, 1),
        (100, 1000, 1, 1),
        (1000, 1000, 1, 1),
        (1000, 10_000, 1, 1),
        (1000, 10_000, 1, 16),
        (1000, 10_000, 4, 1),
        (10_000, 10_000, 16, 1),
    ):
        turnover, progress = measure(in_flight, queued, endpoints, flows, rounds=max(2000, in_flight))
        print(
            f"{in_flight:9} {queued:7} {endpoints:9} {flows:5} {turnover:14.1f} {progress:12.1f} "
            f"{turnover + progress:8.1f}"
        )


if __name__ == "__main__":
    main()
