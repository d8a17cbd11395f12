"""The core behind a socket, 0.1 to 0.3 ms away from its fronts: against the simulated engine, at twice its capacity.

Beside it is a core that is called, a microsecond away. With no delay at all a request that takes the place of another
would join the step that begins at the instant in which the other ended, which no gateway achieves.
"""

from dataclasses import replace
from random import Random

import pytest

from gateway.admission.policy import Bounds, Policy
from gateway.admission.prediction import outlook
from gateway.admission.tuning import TUNING
from gateway.simulation.contenders import kvgate
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.result import Slo
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request

STEP = 0.02
MACHINE = Machine(kv_tokens=8000, block_size=16, step=StepTime(STEP, 0.0, 0.0, 0.0))
FLOWS = {"small": (20, 100), "middle": (100, 300), "large": (300, 600)}
CALL = 1e-6
SOCKET = (0.0001, 0.0002, 0.0003)
WAKES = 1.0107
"""Seconds until a core wakes while requests wait: after a whole one, it would be in the very instant of an arrival."""


def crowd(seed, requests=500):
    """Three flows. Arrivals are milliseconds away from reports and the ends of steps: further than any delay, so that
    what happens first is heard first."""
    random = Random(seed)  # noqa: S311 - the same load every time
    offered = []
    for number in range(requests):
        flow = random.choice(["small"] * 4 + ["middle", "large"])
        output = random.randint(*FLOWS[flow])
        at = 0.007 + number * 2 * STEP + (0.006 if number else 0.0)  # the first begins the steps
        offered.append(Request(at, random.randint(*FLOWS[flow]), output, max_tokens=output, flow=flow))
    return tuple(offered)


def played(policy, delay, seed=3):
    return simulate(crowd(seed), MACHINE, kvgate(policy, delay))


def order(result):
    """The requests that went, in the order in which they did, and those that were refused."""
    went = sorted((job for job in result.jobs if job.dispatched_at is not None), key=lambda job: job.dispatched_at)
    return [job.number for job in went], [job.number for job in result.jobs if job.refused is not None]


@pytest.mark.parametrize("bounds", list(Bounds))
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (4, 5))])
def test_a_socket_changes_nothing_in_the_order_of_dispatch(bounds, seed, monkeypatch):
    """With a new forecast at each event: how long one stays in use goes by the time itself, as do predicted waits."""
    monkeypatch.setattr(outlook, "TUNING", replace(TUNING, forecast_age=0.0))
    policy = Policy(ttft_target=None, bounds=bounds, poll_interval=WAKES)
    called = order(played(policy, CALL, seed))
    assert len(called[0]) > 400
    assert called[0] != sorted(called[0]), "some pass others"
    for delay in SOCKET:
        assert order(played(policy, delay, seed)) == called


@pytest.mark.parametrize("bounds", [Bounds.FORECAST, Bounds.BOTH])
def test_with_older_forecasts_it_costs_no_preemption_and_hardly_any_goodput(bounds):
    policy, slo = Policy(bounds=bounds), Slo()
    called = played(policy, CALL)
    for delay in SOCKET:
        apart = played(policy, delay)
        assert apart.preemptions <= called.preemptions
        assert apart.goodput(slo) >= 0.95 * called.goodput(slo)
