"""The first requests of a gateway that has learned nothing, many more than its engine can serve."""

from random import Random

from gateway.admission.policy import Policy
from gateway.simulation.contenders import kvgate, oracle
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.result import Result, Slo
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request

MACHINE = Machine(
    kv_tokens=255 * 32,
    block_size=32,
    max_model_len=2048,
    max_num_seqs=128,
    step=StepTime(0.004, 0.0001, 0.00002, 1e-8),
)
CAPACITY = 6.8
"""Requests per second that the oracle completes of this workload."""
OVERLOAD = 6.0
MINUTE = 60.0
FIRST = 142


def workload(seed):
    """Long answers to short prompts: what runs grows to four times what it was let in with."""
    random = Random(seed)  # noqa: S311 - the same load every time
    arrivals = [number / (CAPACITY * OVERLOAD) for number in range(round(MINUTE * CAPACITY * OVERLOAD))]
    return tuple(Request(at, random.randint(100, 200), random.randint(300, 600), 1900) for at in arrivals)


def goodput(result: Result) -> int:
    """Tokens of the requests in SLO that ended in the first minute."""
    ended = (job for job in result.jobs if job.ended_at is not None and job.ended_at <= MINUTE)
    return sum(job.output for job in ended if Slo().met(job))


def test_a_cold_start_under_overload_preempts_next_to_nothing_and_wastes_little():
    served = possible = 0
    for seed in (11, 12, 13, 14):
        offered = workload(seed)
        result = simulate(offered, MACHINE, kvgate(Policy()))
        dispatched = [job for job in result.jobs if job.dispatched_at is not None]
        first = sorted(dispatched, key=lambda job: job.dispatched_at)[:FIRST]
        assert sum(1 for job in first if job.preemptions) <= 2, seed
        served += goodput(result)
        possible += goodput(simulate(offered, MACHINE, oracle(Slo().ttft)))
    assert served >= 0.86 * possible
