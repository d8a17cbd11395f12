from random import Random

import pytest

from gateway.admission.commands import Dispatch, Reject, WakeAt
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
from gateway.admission.policy import Bounds, Policy
from gateway.simulation.contenders import Apart, ScrapedGate, apart, direct, kvgate
from gateway.simulation.engine import Engine
from gateway.simulation.machine import Machine
from gateway.simulation.result import Slo
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request, in_flows


def arrived(number):
    return Arrived(number, Demand((10,), 10))


def observed(usage):
    return Observed("engine", 0.0, usage, 1, 0, 0)


def test_vllm_alone_takes_all_and_refuses_only_at_its_own_bound():
    engine = Engine(Machine())
    admission = direct(max_queued=1).build(engine, ())
    assert admission.handle(arrived(1), 0.0) == [Dispatch(1, "engine")]
    engine.submit(engine.job(1, Request(0.0, 10, 10)), 0.0)
    (refusal,) = admission.handle(arrived(2), 0.0)
    assert isinstance(refusal, Reject)
    assert len(direct().build(engine, ()).handle(arrived(3), 0.0)) == 1


def test_the_scraped_gate_knows_only_what_the_last_scrape_showed():
    gate = ScrapedGate(0.9, 0.8)
    assert gate.handle(arrived(1), 0.0) == [Dispatch(1, "engine")]
    assert gate.handle(observed(0.95), 1.0) == []
    assert gate.handle(arrived(2), 1.1) == []
    assert gate.handle(observed(0.85), 2.0) == []
    assert gate.handle(arrived(3), 2.1) == []
    assert gate.handle(observed(0.79), 3.0) == [Dispatch(2, "engine"), Dispatch(3, "engine")]
    assert gate.handle(observed(0.85), 4.0) == []
    assert gate.handle(arrived(4), 4.1) == [Dispatch(4, "engine")]


def test_contenders_are_told_apart_by_name():
    names = [direct().name, direct(0.05).name, direct(0.05, 48).name, kvgate(Policy(bounds=Bounds.FORECAST)).name]
    assert names == ["vllm", "vllm, 5% watermark", "vllm, 5% watermark, <= 48", "kvgate forecast"]


MACHINE = Machine(kv_tokens=4000)


def crowd(requests=200):
    random = Random(1)  # noqa: S311 - the same load every time
    made = [Request(number * 0.03, random.randint(50, 400), random.randint(10, 300)) for number in range(requests)]
    return in_flows(tuple(made), 3)


def gateways(number):
    """So many of them, in front of an engine of 40 blocks of 16 tokens and 4 sequences."""
    both = apart(Policy(bounds=Bounds.FORECAST, ttft_target=None), number).build(Engine(Machine()), ())
    assert both.handle(EndpointUp("engine", Capacity(1000, 40, 16, 4)), 0.0) == []
    return both


def asking(number, prompt=10):
    return Arrived(number, Demand((prompt,), 20))


def dispatched(commands):
    return [command.request for command in commands if isinstance(command, Dispatch)]


@pytest.mark.parametrize("bounds", Bounds)
def test_one_with_all_decides_as_the_core(bounds):
    policy = Policy(bounds=bounds)
    core, alone = (simulate(crowd(), MACHINE, contender) for contender in (kvgate(policy), apart(policy, 1)))
    assert [(job.dispatched_at, job.ended_at, job.refused) for job in alone.jobs] == [
        (job.dispatched_at, job.ended_at, job.refused) for job in core.jobs
    ]
    assert core.refused, "some are decided by the clock"


def test_each_of_several_has_its_part_of_the_sequences_and_every_other_request():
    both = gateways(2)
    both.handle(Observed("engine", 0.5, 0.1, 1, 0, 5.0), 0.5)
    assert [dispatched(both.handle(asking(number), 1.0)) for number in range(6)] == [[0], [1], [2], [3], [], []]
    assert dispatched(both.handle(Finished(1, Verdict.DONE, 5), 2.0)) == [5], "4 waits for 0 or 2"
    assert dispatched(both.handle(Finished(2, Verdict.DONE, 5), 2.0)) == [4]


def test_what_fits_the_engine_does_not_fit_a_part_of_it():
    for number, refused in ((1, False), (2, False), (4, True)):
        (command, *_) = gateways(number).handle(asking(0, prompt=300), 1.0)
        assert isinstance(command, Reject) == refused


class Sleeper:
    """Wants to be woken at given times, one after the other, and writes down what it hears."""

    def __init__(self, *times):
        self.times = list(times)
        self.heard = []

    def handle(self, event, now):
        self.heard.append((event, now))
        return [WakeAt(self.times.pop(0))] if self.times else []


def test_each_is_woken_at_its_own_time_alone():
    first, second = Sleeper(4.0, 7.0), Sleeper(5.0)
    both = Apart([first, second])
    assert both.handle(asking(0), 1.0) == [WakeAt(4.0)]
    assert both.handle(asking(1), 2.0) == [WakeAt(4.0)], "not later for the second's sake"
    assert both.handle(Tick(), 4.0) == [WakeAt(5.0)]
    assert both.handle(Tick(), 5.0) == [WakeAt(7.0)]
    assert both.handle(Tick(), 7.0) == []
    assert [(type(event), now) for event, now in first.heard] == [(Arrived, 1.0), (Tick, 4.0), (Tick, 7.0)]
    assert [(type(event), now) for event, now in second.heard] == [(Arrived, 2.0), (Tick, 5.0)]


def test_each_hears_of_its_own_requests_and_of_the_whole_engine():
    cores = [Sleeper(), Sleeper(), Sleeper()]
    several = Apart(cores)
    scrape, end = Observed("engine", 1.0, 0.5, 2, 0, 5.0), Finished(4, Verdict.DONE, 9)
    for event in (Progress(((0, 5), (1, 6), (4, 7))), scrape, end):
        several.handle(event, 1.0)
    assert [[event for event, _ in core.heard] for core in cores] == [
        [Progress(((0, 5),)), scrape],
        [Progress(((1, 6), (4, 7))), scrape, end],
        [scrape],
    ]


def test_a_crowd_is_served_worse_by_eight_with_a_part_each():
    """No request is lost, and nothing is dispatched beyond the engine."""
    one, eight = (simulate(crowd(400), MACHINE, contender) for contender in (kvgate(Policy()), apart(Policy(), 8)))
    assert all((job.ended_at is None) != (job.refused is None) for job in eight.jobs)
    assert eight.goodput(Slo()) < one.goodput(Slo())
