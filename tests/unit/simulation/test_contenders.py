from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Arrived, Demand, Observed
from gateway.admission.policy import Bounds, Policy
from gateway.simulation.contenders import ScrapedGate, direct, kvgate
from gateway.simulation.engine import Engine
from gateway.simulation.machine import Machine
from gateway.simulation.workload import Request


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
