"""The core against a model of vLLM's scheduler under overload: what it must prevent, and what it must not cost."""

from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    Tick,
    Verdict,
)
from gateway.admission.policy import Policy

STEP = 0.02
BLOCKS, BLOCK = 512, 16


@dataclass
class Job:
    number: int
    prompt: int
    output: int
    streamed: bool
    generated: int = 0

    @property
    def blocks(self) -> int:
        return -(-(self.prompt + self.generated + 1) // BLOCK)


@dataclass
class Engine:
    """First come first served; who finds no block for its next token sends the youngest back to the queue."""

    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    preemptions: int = 0
    tokens: int = 0

    @property
    def used(self) -> int:
        return sum(job.blocks for job in self.running)

    def step(self) -> list[Job]:
        """One token for each that runs; those that are done by it."""
        preempted = False
        while self.running and self.used > BLOCKS:
            self.waiting.insert(0, self.running.pop())
            self.preemptions += 1
            preempted = True
        while not preempted and self.waiting and self.used + self.waiting[0].blocks <= BLOCKS:
            self.running.append(self.waiting.pop(0))
        for job in self.running:
            job.generated += 1
        self.tokens += len(self.running)
        done = [job for job in self.running if job.generated >= job.output]
        self.running = [job for job in self.running if job.generated < job.output]
        return done


@dataclass
class Outcome:
    engine: Engine
    completed: int
    usages: list[float]
    errors: list[float]


def run(*, gated: bool, streamed_share: float, seconds: float = 60.0) -> Outcome:
    """Offer more than the engine can do, through the core or straight to it."""
    random = Random(7)  # noqa: S311 - the same load every time
    engine = Engine()
    controller = AdmissionController(Policy(max_requests=10**6, ttl=1e6))
    controller.handle(EndpointUp("a", Capacity(4096, BLOCKS, BLOCK)), 0.0)
    jobs: dict[int, Job] = {}
    outcome = Outcome(engine, 0, [], [])
    arrived, now, wait = 0, 0.0, 0.0

    def tell(event):
        for command in controller.handle(event, now):
            if isinstance(command, Dispatch):
                engine.waiting.append(jobs[command.request])

    while now < seconds:
        now += STEP
        wait -= STEP
        while wait <= 0:
            wait += random.expovariate(25.0)
            arrived += 1
            streamed = random.random() < streamed_share
            job = jobs[arrived] = Job(arrived, random.randint(100, 400), random.randint(20, 150), streamed)
            if gated:
                tell(Arrived(arrived, Demand((job.prompt,), 400), streamed=streamed))
            else:
                engine.waiting.append(job)
        done = engine.step()
        outcome.completed += len(done)
        outcome.usages.append(engine.used / BLOCKS)
        if gated:
            seen = tuple((job.number, job.generated) for job in engine.running if job.streamed)
            tell(Progress(seen))
            for job in done:
                tell(Finished(job.number, Verdict.DONE, job.output))
            tell(Tick())
            if round(now / STEP) % 50 == 0:
                state = controller.snapshot(now).endpoints[0]
                truth = engine.used + sum(job.blocks for job in engine.waiting)
                outcome.errors.append((state.held_blocks - truth) / BLOCKS)
                usage = engine.used / BLOCKS
                tell(Observed("a", now, usage, len(engine.running), len(engine.waiting), engine.tokens))
    return outcome


@pytest.fixture(scope="module")
def ungated():
    return run(gated=False, streamed_share=1.0)


def test_the_load_is_an_overload(ungated):
    assert ungated.engine.preemptions > 100


@pytest.mark.parametrize("streamed_share", [1.0, 0.5, 0.0])
def test_the_gate_prevents_preemptions_and_costs_no_throughput(ungated, streamed_share):
    gated = run(gated=True, streamed_share=streamed_share)
    assert gated.engine.preemptions < ungated.engine.preemptions / 20
    assert gated.completed > 0.85 * ungated.completed


def test_the_ledger_of_streams_is_the_engines_own_account():
    errors = run(gated=True, streamed_share=1.0).errors
    assert max(abs(error) for error in errors) < 0.02


def test_the_ledger_of_silent_requests_stays_near_the_truth():
    errors = run(gated=True, streamed_share=0.0).errors[5:]
    assert abs(sum(errors) / len(errors)) < 0.05
    assert max(abs(error) for error in errors) < 0.15
