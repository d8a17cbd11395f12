import pytest

from gateway.simulation.contenders import direct
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.result import Slo
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request

SECOND_STEPS = Machine(kv_tokens=640, block_size=16, max_num_seqs=1, step=StepTime(1.0, 0.0, 0.0, 0.0))
"""Every step takes a second, one request after the other."""


@pytest.fixture
def result():
    return simulate((Request(0.0, 10, 4), Request(0.0, 10, 6)), SECOND_STEPS, direct(max_queued=2))


def test_figures_are_of_the_requests(result):
    assert [(job.first_token_at, job.ended_at) for job in result.jobs] == [(1.0, 4.0), (5.0, 10.0)]
    assert (result.seconds, result.tokens, result.throughput) == (10.0, 10, 1.0)
    assert (result.ttft(0.0), result.ttft(0.99), result.worst_gap(0.5)) == (1.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("slo", "share", "tokens"), [(Slo(5.0, 1.0), 1.0, 10), (Slo(4.9, 1.0), 0.5, 4), (Slo(5.0, 0.9), 0.0, 0)]
)
def test_only_requests_in_slo_count(result, slo, share, tokens):
    assert (result.in_slo(slo), result.goodput(slo)) == (share, tokens)


def test_who_is_refused_is_not_in_slo():
    result = simulate((Request(0.0, 10, 4), Request(0.0, 10, 6)), SECOND_STEPS, direct(max_queued=1))
    assert (result.refused, result.in_slo(Slo(9.0, 9.0))) == (1, 0.5)


def test_nobody_served_has_no_figures():
    result = simulate((Request(0.0, 10, 4),), SECOND_STEPS, direct(max_queued=0))
    assert (result.ttft(0.5), result.worst_gap(0.5), result.throughput, result.kv_usage) == (None, None, 0.0, 0.0)
