from random import Random

import pytest

from gateway.simulation.contenders import direct, oracle
from gateway.simulation.machine import Machine
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request, sharing

MACHINE = Machine(kv_tokens=4000, block_size=16)


def crowd(requests, interval, seed=1):
    random = Random(seed)  # noqa: S311 - the same load every time
    return tuple(
        Request(number * interval, random.randint(50, 400), random.randint(10, 300)) for number in range(requests)
    )


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_it_hardly_preempts_and_is_faster_where_vllm_alone_preempts(shared):
    offered = crowd(300, 0.0)
    if shared:
        offered = sharing(offered, shared, groups=3)
    alone, best = simulate(offered, MACHINE, direct()), simulate(offered, MACHINE, oracle(None))
    assert alone.preemptions > 50
    assert best.preemptions <= 3
    assert best.refused == 0
    assert best.seconds < 1.02 * alone.seconds


def test_it_uses_the_cache_that_it_knows_will_be_free():
    best = simulate(crowd(300, 0.0), MACHINE, oracle(None))
    middle = [sample.kv_usage for sample in best.samples[5:-10]]
    assert sum(middle) / len(middle) > 0.85


def test_who_goes_is_in_time_and_who_cannot_be_is_dropped():
    result = simulate(crowd(600, 0.03), MACHINE, oracle(2.0))
    late = [job for job in result.jobs if job.first_token_at and job.first_token_at - job.request.arrival > 2.0]
    assert result.refused > 50
    assert not late


def test_nobody_is_dropped_who_could_be_in_time():
    result = simulate(crowd(100, 1.0), MACHINE, oracle(2.0))
    assert result.refused == 0
