"""What the measurement of the relay measures, on the engine's stand-in alone."""

import contextlib
import os
from dataclasses import replace

import pytest

from loadtests import relay_cost
from loadtests.relay_cost import LOADS, Bench, Load, Proxy, installed, quiet, repeat, report
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind

BENCH = Bench(kvgate="", tokenizer=None, seconds=0.2)
CHAT = "/v1/chat/completions"


@pytest.fixture
def quick(monkeypatch):
    """Streams run for a moment, and every program where this test may run."""
    monkeypatch.setattr(relay_cost, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(relay_cost, "LOAD_CORE", min(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    "load", [Load(50, rate=100.0), Load(50, rate=100.0, phases=10), Load(0, rate=200.0), Load(0, rate=200.0, ids=True)]
)
async def test_the_engines_stand_in_alone_costs_some_microseconds(quick, load):
    """CPU is told in hundredths of a second: less work would be none."""
    bench = replace(BENCH, seconds=1.0)
    cost = await bench.measure("direct", load)
    assert 1 < cost.us < 100_000
    assert 0 <= cost.kernel <= cost.us


@pytest.fixture
def engine(monkeypatch):
    """Let the engine be this fake, in the test's own process."""

    def be(fake):
        @contextlib.asynccontextmanager
        async def running(_self, _load, _folder):
            async with fake:
                yield Proxy(os.getpid(), fake.port)

        monkeypatch.setattr(Bench, "engine", running)

    return be


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(FaultKind.RESET_MID_STREAM, after=3, path=CHAT), "a stream broke after 3 of 40"),
        (Fault(FaultKind.NO_DONE, path=CHAT), "a stream broke after 40 of 40"),
    ],
)
async def test_a_stream_that_is_not_whole_spoils_the_measurement(quick, engine, fault, why):
    engine(FakeVllm(FakeSettings(step_seconds=0.01), faults=[fault]))
    with pytest.raises(RuntimeError, match=why):
        await BENCH.measure("direct", Load(3, rate=100.0))


async def test_plain_requests_are_counted_and_one_that_fails_spoils_the_measurement():
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake:
        done = await repeat(fake.port, Load(0).request, 0.2)
        assert done == sum(seen.path == CHAT for seen in fake.seen)
        assert done >= relay_cost.CONNECTIONS
        fake.faults.add(Fault(FaultKind.STATUS, path=CHAT))
        with pytest.raises(RuntimeError, match=r"^1 of \d+ plain requests failed"):
            await repeat(fake.port, Load(0).request, 0.2)


async def test_a_proxy_that_stays_busy_is_not_measured(monkeypatch):
    async def at_once(_seconds):
        pass

    spent = iter(range(1000))
    monkeypatch.setattr(relay_cost.asyncio, "sleep", at_once)
    monkeypatch.setattr(relay_cost, "cpu_seconds", lambda _pid: next(spent))
    with pytest.raises(RuntimeError, match="process 7 uses more than 5% of a core with nothing to do"):
        await quiet(7)
    monkeypatch.setattr(relay_cost, "cpu_seconds", lambda _pid: 3.0)
    await quiet(7)


def test_a_report_has_the_medians_and_what_kvgate_costs_beside_nginx(capsys):
    def rounds(*costs):
        return [{load.label: cost for load in LOADS} for cost in costs]

    columns = report({"nginx": rounds(9.0, 10.0, 30.0), "kvgate": rounds(15.0, 14.0, 90.0)})
    assert columns["kvgate"] == {load.label: 15.0 for load in LOADS}
    shown = capsys.readouterr().out
    assert "us per event, 1,000 streams: kvgate is 1.5 x nginx" in shown
    assert "us per plain request: kvgate is 1.5 x nginx" in shown


def test_a_report_compares_with_the_better_router(capsys):
    report(
        {
            name: [{load.label: cost for load in LOADS}]
            for name, cost in {"vllm-router": 9.0, "sglang-router": 8.0, "kvgate": 12.0}.items()
        }
    )
    shown = capsys.readouterr().out
    assert "us per event, 256 streams in 10 phases: kvgate is 1.5 x sglang-router" in shown
    assert "x vllm-router" not in shown


def test_a_router_that_is_not_installed_is_named_and_left_out(monkeypatch, capsys):
    monkeypatch.setattr(relay_cost.shutil, "which", lambda name: None if name == "sglang-router" else f"/bin/{name}")
    assert installed(["nginx", "kvgate", "vllm-router", "sglang-router"]) == ["nginx", "kvgate", "vllm-router"]
    assert capsys.readouterr().out == "sglang-router is not installed (pip install sglang-router): it is not measured\n"


def test_of_one_proxy_alone_no_share_is_told(capsys):
    report({"direct": [{load.label: 9.0 for load in LOADS}]})
    assert "x nginx" not in capsys.readouterr().out
