"""What it is worth to spare an engine that has just come up (the rule `cold`): beside two warm ones, at full load.

    python -m tests.proof.cold_engine [--requests N] [--skip N]

The engine comes up a minute after the first request and is cold in one of the ways of `COLD`. `flooded`: the core is
told that it is warm, and sends it all that fits. `spared`: what the core does. Goodput is the tokens of requests in
SLO, of those that arrive in the two minutes after it came up, as a share of what an engine that is warm from its first
step leads to.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from gateway.admission.commands import Dispatch, Reject, WakeAt
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
    Tick,
    Verdict,
)
from gateway.admission.policy import Policy
from gateway.simulation import workload
from gateway.simulation.compare import capacity
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine
from gateway.simulation.result import Slo
from gateway.simulation.simulate import POLL, REPORT
from gateway.simulation.workload import Workload

TRACE = Path(__file__).parents[2] / "loadtests" / "traces" / "azure_llm_2023_conv.csv.gz"
WARM = 2
"""Engines that are up from the start."""
JOINS = 60.0
JUDGED = 120.0

Slower = Callable[["_Cold", Engine], float]
"""Seconds that a step takes beyond its own."""


@dataclass(slots=True)
class _Cold:
    """The state of a cold engine: when its first step began, and the shapes of batches it has seen."""

    began: float = inf
    shapes: set[tuple[int, int]] = field(default_factory=set)
    now: float = 0.0


def _warm(_cold: _Cold, _engine: Engine) -> float:
    return 0.0


def _stall(seconds: float) -> Slower:
    def slower(cold: _Cold, _engine: Engine) -> float:
        return seconds if cold.began == cold.now else 0.0

    return slower


def _shapes(seconds: float) -> Slower:
    def slower(cold: _Cold, engine: Engine) -> float:
        decoding, prefill, _ = engine.batch
        shape = decoding.bit_length(), prefill.bit_length()
        if shape in cold.shapes:
            return 0.0
        cold.shapes.add(shape)
        return seconds

    return slower


def _slow(times: float, span: float) -> Slower:
    def slower(cold: _Cold, engine: Engine) -> float:
        return (times - 1) * (engine.busy_until - cold.now) if cold.now < cold.began + span else 0.0

    return slower


COLD: Mapping[str, Slower] = {
    "first step takes 2 s": _stall(2.0),
    "first step takes 10 s": _stall(10.0),
    "first step takes 30 s": _stall(30.0),
    "each new shape takes 0.3 s": _shapes(0.3),
    "each new shape takes 1 s": _shapes(1.0),
    "3 times slower for 20 s": _slow(3.0, 20.0),
}


class _Run:
    """Engines behind one core, in the order of time."""

    def __init__(self, offered: Workload, machine: Machine, slower: Slower, *, spared: bool) -> None:
        self._machine = machine
        self._core = AdmissionController(Policy())
        self._engines = [Engine(machine) for _ in range(WARM + 1)]
        self._names = [EndpointId(f"engine {number}") for number in range(WARM + 1)]
        self._where: dict[RequestId, int] = {}
        # Prefix caches are per engine, so each engine has a job of its own for a request; the one dispatched counts.
        self._jobs = [
            [engine.job(RequestId(n), request) for n, request in enumerate(offered)] for engine in self._engines
        ]
        self._offered = offered
        self._slower, self._cold, self._spared = slower, _Cold(), spared
        self._ends = [inf] * len(self._engines)
        self._arrived = 0
        self._due: dict[Callable[[float], None], float] = {
            self._arrive: offered[0].arrival,
            self._report: REPORT,
            self._poll: POLL,
            self._join: JOINS,
            self._wake: inf,
        }

    def play(self, until: float) -> list[Job]:
        """The jobs that were dispatched."""
        for name in self._names[:WARM]:
            self._tell(EndpointUp(name, self._capacity), 0.0)
        while (now := min(*self._ends, *self._due.values())) <= until:
            if now in self._ends:
                self._stepped(self._ends.index(now), now)
            else:
                happens = min(self._due, key=self._due.__getitem__)
                self._due[happens] = inf
                happens(now)
            for index, engine in enumerate(self._engines):
                if self._ends[index] == inf and not engine.idle:
                    self._begin(index, now)
        return [self._jobs[where][request] for request, where in self._where.items()]

    def _arrive(self, now: float) -> None:
        number, self._arrived = self._arrived, self._arrived + 1
        request = self._offered[number]
        if self._arrived < len(self._offered):
            self._due[self._arrive] = self._offered[self._arrived].arrival
        demand = Demand((request.prompt,), request.max_tokens)
        prefix = workload.prefix(request, number)
        self._tell(Arrived(RequestId(number), demand, flow=request.flow, prefix=prefix), now)

    def _wake(self, now: float) -> None:
        self._tell(Tick(), now)

    def _report(self, now: float) -> None:
        self._due[self._report] = now + REPORT
        if progress := tuple(one for engine in self._engines for one in engine.progress()):
            self._tell(Progress(progress), now)

    def _begin(self, index: int, now: float) -> None:
        end = self._engines[index].begin(now)
        if index == WARM:
            self._cold.now, self._cold.began = now, min(self._cold.began, now)
            end += self._slower(self._cold, self._engines[index])
        self._ends[index] = end

    def _stepped(self, index: int, now: float) -> None:
        self._ends[index] = inf
        done = self._engines[index].complete(now)
        for job in done:
            self._tell(Finished(job.number, Verdict.DONE, job.output), now)

    def _poll(self, now: float) -> None:
        self._due[self._poll] = now + POLL
        for index, (name, engine) in enumerate(zip(self._names, self._engines, strict=True)):
            if index < WARM or now > JOINS:
                usage = engine.gauge_used / engine.pool.total
                counted = float(engine.tokens), float(engine.preemptions)
                self._tell(Observed(name, now, usage, engine.gauge_running, engine.gauge_waiting, *counted), now)

    def _join(self, now: float) -> None:
        name = self._names[WARM]
        self._tell(EndpointUp(name, self._capacity), now)
        if not self._spared:
            self._tell(Observed(name, now, 0.0, 0, 0, 1.0), now)

    @property
    def _capacity(self) -> Capacity:
        machine = self._machine
        return Capacity(
            machine.max_model_len,
            machine.blocks,
            machine.block_size,
            machine.max_num_seqs,
            shares_prefix=machine.prefix_caching,
        )

    def _tell(self, event: Event, now: float) -> None:
        for command in self._core.handle(event, now):
            match command:
                case Dispatch():
                    where = self._names.index(command.endpoint)
                    self._where[command.request] = where
                    self._engines[where].submit(self._jobs[where][command.request], now)
                case WakeAt():
                    self._due[self._wake] = command.at
                case Reject():
                    pass


def goodput(offered: Workload, machine: Machine, slower: Slower, *, spared: bool) -> int:
    """Tokens of requests in SLO of those that came in the two minutes after the engine."""
    jobs = _Run(offered, machine, slower, spared=spared).play(JOINS + 2 * JUDGED)
    judged = (job for job in jobs if JOINS <= job.request.arrival < JOINS + JUDGED)
    return sum(job.output for job in judged if Slo().met(job))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--skip", type=int, default=0, help="requests of the trace before the first")
    arguments = parser.parse_args()
    recorded = workload.load(TRACE, arguments.skip + arguments.requests)[arguments.skip :]
    machine = Machine()
    for outputs in (1.0, 4.0):
        trace = workload.fitted(
            workload.scaled(recorded, outputs=outputs),
            machine.max_model_len,
            machine.blocks * machine.block_size,
        )
        one = capacity(trace[:2000], machine).requests_per_second
        for load in (0.9, 1.2, 1.6):
            offered = workload.at_rate(trace, one * WARM * load)
            span = JOINS + JUDGED
            offered = tuple(request for request in offered if request.arrival < span)
            best = goodput(offered, machine, _warm, spared=False)
            print(f"outputs x{outputs:g}, load {load:g} of {WARM} engines, {len(offered)} requests: flooded, spared")
            for name, slower in {"warm": _warm, **COLD}.items():
                shares = [goodput(offered, machine, slower, spared=spared) / best for spared in (False, True)]
                print(f"  {name:28}", *(f"{100 * share:7.1f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
