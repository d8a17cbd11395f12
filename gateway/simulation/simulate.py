"""The simulation's loop: arrivals, engine steps, and the gateway's events in between, in the order of time."""

from collections import deque
from dataclasses import replace
from math import inf

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointUp,
    Event,
    Finished,
    Observed,
    Progress,
    RequestId,
    Tick,
    Verdict,
)
from gateway.simulation.contenders import ENDPOINT, Contender, watermarked
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine
from gateway.simulation.result import Result, Sample
from gateway.simulation.workload import Workload, fitted, prefix

REPORT = 0.04
"""Seconds between two batches of progress."""
POLL = 1.0
"""Seconds between two scrapes."""


def simulate(workload: Workload, machine: Machine, contender: Contender) -> Result:
    """Play a workload, cut to what the machine can serve, against one contender, until every request has ended."""
    machine = replace(machine, watermark=watermarked(contender, machine))
    fitting = fitted(workload, machine.max_model_len, machine.blocks * machine.block_size)
    return _Run(machine, contender, fitting).play()


class _Run:
    def __init__(self, machine: Machine, contender: Contender, workload: Workload) -> None:
        self._machine = machine
        self._contender = contender
        self._engine = Engine(machine)
        self._jobs = [self._engine.job(RequestId(number), request) for number, request in enumerate(workload)]
        self._admission = contender.build(self._engine, self._jobs)
        self._arrived = 0
        self._open = 0
        """Requests that arrived and have not ended."""
        self._queued = 0
        self._wake_at = inf
        self._report_at = REPORT if contender.reports else inf
        self._poll_at = POLL
        self._samples: list[Sample] = []
        self._on_the_way: deque[tuple[float, Event | Job]] = deque()
        """Events and dispatched requests, and when each is there: in order, as all take the same time."""

    def play(self) -> Result:
        engine, machine = self._engine, self._machine
        capacity = Capacity(  # without `max_num_seqs`: an engine's metrics do not tell it
            machine.max_model_len, machine.blocks, machine.block_size, shares_prefix=machine.prefix_caching
        )
        self._tell(EndpointUp(ENDPOINT, capacity), 0.0)
        last_end = 0.0
        while (now := max(last_end, self._next())) < inf:
            while self._next() <= now:
                self._happen(self._next())
            while not engine.idle:
                now = engine.coast(now, self._next())
                end = engine.begin(now)
                while (event := self._next()) < end:
                    self._happen(event)
                now = last_end = end
                for job in engine.complete(now):
                    self._open -= 1
                    self._send(Finished(job.number, Verdict.DONE, job.output), now)
        return Result(
            self._contender.name,
            tuple(self._jobs),
            last_end,
            engine.preemptions,
            engine.tokens,
            tuple(self._samples),
        )

    def _next(self) -> float:
        """The time of the next event outside of the engine; infinity when all is over."""
        if self._arrived < len(self._jobs):
            arrival = self._jobs[self._arrived].request.arrival
        elif self._open:
            arrival = inf
        else:
            return inf
        there = self._on_the_way[0][0] if self._on_the_way else inf
        return min(there, arrival, self._report_at, self._poll_at, self._wake_at)

    def _happen(self, now: float) -> None:
        """Carry out one of the events due at this time."""
        contender, engine = self._contender, self._engine
        if self._on_the_way and self._on_the_way[0][0] <= now:
            self._receive(self._on_the_way.popleft()[1], now)
        elif self._arrived < len(self._jobs) and self._jobs[self._arrived].request.arrival <= now:
            job = self._jobs[self._arrived]
            self._arrived += 1
            self._open += 1
            self._queued += 1
            self._send(_arrival(job), now)
        elif self._wake_at <= now:
            self._wake_at = inf
            self._tell(Tick(), now)
        elif self._report_at <= now:
            self._report_at += REPORT
            if progress := engine.progress():
                self._send(Progress(progress), now)
        else:
            self._poll_at += POLL
            usage = engine.gauge_used / engine.pool.total
            running, waiting = engine.gauge_running, engine.gauge_waiting
            self._samples.append(Sample(now, usage, running, waiting, self._queued))
            if contender.polls:
                tokens, preemptions = float(engine.tokens), float(engine.preemptions)
                self._tell(Observed(ENDPOINT, now, usage, running, waiting, tokens, preemptions), now)

    def _send(self, what: Event | Job, now: float) -> None:
        if delay := self._contender.delay:
            self._on_the_way.append((now + delay, what))
        else:
            self._receive(what, now)

    def _receive(self, what: Event | Job, now: float) -> None:
        if isinstance(what, Job):
            self._engine.submit(what, now)
        else:
            self._tell(what, now)

    def _tell(self, event: Event, now: float) -> None:
        for command in self._admission.handle(event, now):
            if isinstance(command, Dispatch):
                self._queued -= 1
                self._send(self._jobs[command.request], now)
            elif isinstance(command, Reject):
                self._queued -= 1
                self._open -= 1
                self._jobs[command.request].refused = command.outcome.value
            else:
                self._wake_at = command.at


def _arrival(job: Job) -> Arrived:
    request = job.request
    return Arrived(
        job.number,
        Demand((request.prompt,), request.max_tokens),
        flow=request.flow,
        prefix=prefix(request, job.number),
    )
