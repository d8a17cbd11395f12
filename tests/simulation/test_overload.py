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
from tests.fakes.vllm.scheduler import Scheduler, Sequence

STEP = 0.02
BLOCKS, BLOCK = 512, 16


@dataclass
class Outcome:
    engine: Scheduler
    errors: list[float] = field(default_factory=list)
    """Of the ledger, as shares of the cache."""


def ledger_error(controller: AdmissionController, engine: Scheduler, now: float) -> float:
    waiting = sum([-(-sequence.length // BLOCK) for sequence in engine.waiting])
    return (controller.snapshot(now).endpoints[0].held_blocks - engine.used_blocks - waiting) / BLOCKS


def run(*, gated: bool, streamed_share: float, seconds: float = 60.0) -> Outcome:
    """Offer more than the engine can do, through the core or straight to it."""
    random = Random(7)  # noqa: S311 - the same load every time
    engine = Scheduler(BLOCKS + 1, BLOCK, max_num_seqs=1000, max_batched_tokens=10**6)
    controller = AdmissionController(Policy(max_requests=10**6, ttl=1e6))
    controller.handle(EndpointUp("a", Capacity(4096, BLOCKS, BLOCK)), 0.0)
    sequences: dict[int, Sequence] = {}
    outcome = Outcome(engine)
    arrived, now, wait = 0, 0.0, 0.0

    def tell(event):
        for command in controller.handle(event, now):
            if isinstance(command, Dispatch):
                engine.add(sequences[command.request])

    while now < seconds:
        now += STEP
        wait -= STEP
        while wait <= 0:
            wait += random.expovariate(25.0)
            arrived += 1
            streamed, prompt = random.random() < streamed_share, random.randint(100, 400)
            event = Arrived(arrived, Demand((prompt,), 400), streamed=streamed)
            sequence = sequences[arrived] = Sequence(prompt, random.randint(20, 150), owner=event)
            if gated:
                tell(event)
            else:
                engine.add(sequence)
        done = [sequence for sequence in engine.step().emitted if sequence.gone]
        if gated:
            tell(Progress(tuple((job.owner.request, job.generated) for job in engine.running if job.owner.streamed)))
            for sequence in done:
                tell(Finished(sequence.owner.request, Verdict.DONE, sequence.generated))
            tell(Tick())
            if round(now / STEP) % 50 == 0:
                outcome.errors.append(ledger_error(controller, engine, now))
                counts = len(engine.running), len(engine.waiting), engine.generation_tokens
                tell(Observed("a", now, engine.usage, *counts))
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
    assert gated.engine.completed > 0.85 * ungated.engine.completed


def test_the_ledger_of_streams_is_the_engines_own_account():
    errors = run(gated=True, streamed_share=1.0).errors
    assert max(abs(error) for error in errors) < 0.02


def test_the_ledger_of_silent_requests_stays_near_the_truth():
    errors = run(gated=True, streamed_share=0.0).errors[5:]
    assert abs(sum(errors) / len(errors)) < 0.05
    assert max(abs(error) for error in errors) < 0.15
