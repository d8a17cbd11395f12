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


@pytest.mark.parametrize(
    ("flows", "fairness"),
    [
        ("aaaaaa", 1.0),  # 4 of 6 are served, and all that was served went to it
        ("abbbbb", 1.0),  # a asked for one and got it
        ("aabbbb", 1.0),
        ("aaaaab", 0.0),  # b asked for one and got none
        ("aaabbb", 0.5),  # each is owed two, b got one
        ("abcaab", 2 / 3),  # c got its one; of the other three a and b are owed half each, b got one
    ],
)
def test_fairness_is_what_the_worst_flow_got_of_what_it_was_owed(flows, fairness):
    offered = tuple(Request(0.0, 10, 4, flow=flow) for flow in flows)
    result = simulate(offered, SECOND_STEPS, direct(max_queued=4))
    assert result.refused == 2
    assert result.fairness == pytest.approx(fairness)


def test_of_nothing_that_was_served_nobody_is_owed_anything():
    assert simulate((Request(0.0, 10, 4),), SECOND_STEPS, direct(max_queued=0)).fairness == 1.0
