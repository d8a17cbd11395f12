"""The model finds its own step times from what it answered, through noise."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateway.simulation import workload
from gateway.simulation.contenders import direct
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request
from tests.proof.calibration import Answer, calibrated, in_phases

TRACE = Path(__file__).parents[2] / "loadtests" / "traces" / "azure_llm_2023_conv.csv.gz"
ENGINE = Machine(8160, 32, 2048, 128, 2048, step=StepTime(0.004, 0.00015, 0.00002, 1e-9))
GUESS = replace(ENGINE, step=StepTime(0.01, 0.0001, 0.0001, 1e-9))


@pytest.fixture(scope="module")
def found():
    random = Random(3)  # noqa: S311 - the same noise every time
    offered = workload.scaled(workload.load(TRACE, 240), prompts=0.25)
    learned = in_phases(offered, (2.0, 8.0, 14.0))

    def noisy(arrival, time):
        return arrival + (time - arrival) * random.uniform(0.97, 1.03) + random.uniform(0.0, 0.004)

    answers = [
        Answer(noisy(job.request.arrival, job.first_token_at), noisy(job.request.arrival, job.ended_at))
        for job in simulate(learned, ENGINE, direct()).jobs
    ]
    return calibrated(learned, GUESS, answers)


def test_what_decides_the_speed_is_found(found):
    true, step = ENGINE.step, found.step
    assert step.base == pytest.approx(true.base, rel=0.03)
    assert step.per_sequence == pytest.approx(true.per_sequence, rel=0.05)
    assert step.per_prefill_token == pytest.approx(true.per_prefill_token, rel=0.15)


def test_workloads_it_has_not_seen_are_predicted(found):
    random = Random(4)  # noqa: S311 - the same load every time
    long = tuple(Request(n / 20, random.randint(100, 200), random.randint(300, 600)) for n in range(150))
    prompts = tuple(Request(n / 15, random.randint(500, 1500), random.randint(5, 60)) for n in range(200))
    for offered in (long, prompts):
        true, guess = simulate(offered, ENGINE, direct()), simulate(offered, found, direct())
        assert guess.throughput == pytest.approx(true.throughput, rel=0.03)
        assert guess.preemptions == pytest.approx(true.preemptions, rel=0.15, abs=5)


def test_what_a_workload_does_not_exercise_is_nothing_and_never_negative():
    one_by_one = tuple(Request(float(n), 1, 5 + n) for n in range(20))
    true = replace(ENGINE, step=StepTime(0.01, 0.0, 0.0, 0.0))
    answers = [Answer(job.first_token_at, job.ended_at) for job in simulate(one_by_one, true, direct()).jobs]
    step = calibrated(one_by_one, GUESS, answers).step
    assert step.base + step.per_sequence == pytest.approx(0.01)
    assert min(step.per_sequence, step.per_prefill_token, step.per_context_token) >= 0.0


def test_phases_follow_each_other_at_their_rates():
    offered = tuple(Request(number * 0.3, 10, 1) for number in range(20))
    found = in_phases(offered, (1.0, 10.0))
    assert [request.arrival for request in found] == sorted(request.arrival for request in found)
    assert workload.rate(found[:10]) == pytest.approx(1.0)
    assert workload.rate(found[10:]) == pytest.approx(10.0)
    assert found[10].arrival == pytest.approx(11.0)
