from dataclasses import replace
from random import Random

import pytest

from gateway.admission.policy import Policy
from gateway.simulation.compare import capacity, compare, contenders, together_and_apart
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.result import Slo
from gateway.simulation.workload import Request, at_rate

MACHINE = Machine(kv_tokens=4000, block_size=16)


def crowd(requests):
    random = Random(5)  # noqa: S311 - the same load every time
    return tuple(Request(number, random.randint(50, 400), random.randint(10, 300)) for number in range(requests))


def test_capacity_is_what_is_served_when_work_never_lacks():
    one_at_a_time = replace(MACHINE, max_num_seqs=1, step=StepTime(0.07, 0.0, 0.0, 0.0))
    known = capacity(tuple(Request(number, 10, 5) for number in range(200)), one_at_a_time)
    assert known.requests_per_second == pytest.approx(1 / 0.35, rel=0.02)
    assert known.in_flight == pytest.approx(1.0, abs=0.3)


def test_all_are_held_to_the_oracle():
    offered, slo = crowd(400), Slo()
    known = capacity(offered, MACHINE)
    compared = contenders(Policy(), slo, known)
    rows = compare(at_rate(offered, 1.5 * known.requests_per_second), MACHINE, compared, slo, 1.5)
    by_name = {row.result.contender: row for row in rows}
    assert list(by_name) == [*(contender.name for contender in compared), "oracle"]
    assert by_name["oracle"].relative == 1.0
    assert by_name["vllm"].relative < 0.5
    assert by_name["vllm"].result.preemptions > 50
    figures = by_name["vllm"].as_json()
    assert figures["load"] == 1.5
    assert figures["goodput_tokens"] == by_name["vllm"].result.goodput(slo)


def test_one_core_for_all_is_held_to_several_with_a_share():
    compared = together_and_apart(Policy(), [2, 8])
    names = [contender.name for contender in compared]
    assert names[:1] + names[-2:] == ["kvgate both", "2 with 1/2 each", "8 with 1/8 each"]
    assert [contender.delay for contender in compared] == [0.0, 0.0001, 0.0003, 0.0, 0.0]
    rows = compare(crowd(100), MACHINE, compared, Slo(), 1.0)
    assert [row.result.contender for row in rows] == [*names, "oracle"]
