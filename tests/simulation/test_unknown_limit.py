"""An engine's sequence limit that nobody told kvgate, and prompts that fill its batch, against the simulated engine."""

from dataclasses import replace
from random import Random

import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import EndpointUp
from gateway.admission.policy import Policy
from gateway.simulation.compare import capacity
from gateway.simulation.contenders import Contender, kvgate
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.result import Slo
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request, at_rate

FAST = StepTime(0.012, 0.00003, 0.00003, 0.00000003)
ROOMY = Machine(kv_tokens=2_000_000, max_num_batched_tokens=8192, step=FAST)
SMALL_BATCH = replace(ROOMY, max_num_batched_tokens=2048, step=StepTime())
LONG = (500, 12_000)
"""Tokens of a prompt: several of these batches."""


class Told:
    """The core, told the limit."""

    def __init__(self, limit):
        self.core, self.limit = AdmissionController(Policy()), limit

    def handle(self, event, now):
        if isinstance(event, EndpointUp):
            event = replace(event, capacity=replace(event.capacity, max_num_seqs=self.limit))
        return self.core.handle(event, now)


def told(machine):
    return Contender("told", lambda *_: Told(machine.max_num_seqs))


UNTOLD = kvgate(Policy())


def offered(machine, load, *, prompts, requests):
    """A Poisson stream of requests, at a load relative to the oracle's throughput."""
    random = Random(1)  # noqa: S311 - the same load every time
    at, made = 0.0, []
    for _ in range(requests):
        at += random.expovariate(1.0)
        made.append(Request(at, random.randint(*prompts), random.randint(50, 500), 2000))
    return at_rate(tuple(made), load * capacity(tuple(made), machine).requests_per_second)


@pytest.mark.parametrize("limit", [16, 64, 256])
def test_a_limit_that_kvgate_is_not_told_costs_next_to_nothing(limit):
    machine = replace(ROOMY, max_num_seqs=limit)
    requests = offered(machine, 1.5, prompts=(200, 1500), requests=1200)
    best, result = (simulate(requests, machine, contender) for contender in (told(machine), UNTOLD))
    assert result.goodput(Slo()) > 0.93 * best.goodput(Slo())
    assert result.ttft(0.99) < 1.2 * Slo().ttft


def test_prompts_that_fill_the_batch_are_taken_for_no_limit():
    requests = offered(SMALL_BATCH, 0.7, prompts=LONG, requests=500)
    best, result = (simulate(requests, SMALL_BATCH, contender) for contender in (told(SMALL_BATCH), UNTOLD))
    assert result.refused == best.refused
    assert result.goodput(Slo()) == best.goodput(Slo())


def test_prompts_wait_in_the_queue_and_not_in_an_engine_that_cannot_begin_with_them():
    requests = offered(SMALL_BATCH, 1.5, prompts=LONG, requests=500)
    result = simulate(requests, SMALL_BATCH, UNTOLD)
    assert max(sample.waiting for sample in result.samples[10:]) < 10
    assert result.ttft(0.99) < 1.6 * Slo().ttft
    assert result.in_slo(Slo()) > 0.4


def test_a_burst_that_the_engine_can_begin_with_in_time_is_not_refused():
    requests = offered(SMALL_BATCH, 0.5, prompts=LONG, requests=500)
    assert simulate(requests, SMALL_BATCH, UNTOLD).refused <= 5
