"""A share of a run, against the fake vLLM."""

import asyncio
import time

from loadtests.scenario import Flow, Phase, Request, Scenario
from loadtests.worker import Run, _work
from tests.fakes.vllm import FakeVllm, Fault, FaultKind

SCENARIO = Scenario(
    "x", (Phase(0.52),), (Request(prompt=5, output=3),), flows=(Flow("a"), Flow("b")), arrivals="constant"
)
HEADERS = {"a": {"x-flow": "a", "Authorization": "Bearer k"}, "b": {"x-flow": "b"}}


def run(fake: FakeVllm, scenario: Scenario = SCENARIO, only: str | None = None) -> Run:
    return Run(scenario, fake.url, "fake", 40.0, 1, "salt", None, HEADERS, 10.0, only)


async def test_shares_add_up_to_the_run_and_come_at_their_times():
    async with FakeVllm() as fake:
        epoch = time.monotonic() + 0.05
        parts = await asyncio.gather(*(_work(run(fake), share, 2, epoch) for share in range(2)))
    records = [record for part in parts for record in part.records]
    assert len(records) == 20
    assert len({(record.planned.flow, record.planned.number) for record in records}) == 20
    assert all(record.loss is None and record.sent >= record.arrived for record in records)


async def test_arrivals_never_wait_for_answers():
    async with FakeVllm(faults=[Fault(FaultKind.SLOW_PREFILL, seconds=0.6) for _ in range(20)]) as fake:
        worked = await _work(run(fake), 0, 1, time.monotonic())
    assert len(worked.records) == 20
    assert max(record.sent for record in worked.records) < min(record.ended for record in worked.records)


async def test_flows_name_themselves_and_one_may_be_alone():
    async with FakeVllm() as fake:
        await _work(run(fake), 0, 1, time.monotonic())
        seen = [{name.lower(): value for name, value in request.headers} for request in fake.seen]
        told = {(headers["x-flow"], headers.get("authorization")) for headers in seen}
        assert told == {("a", "Bearer k"), ("b", None)}
        worked = await _work(run(fake, only="b"), 0, 1, time.monotonic())
    assert {record.planned.flow for record in worked.records} == {"b"}


async def test_clients_that_wait_are_never_more_than_they_are():
    scenario = Scenario("x", (Phase(0.4),), (Request(prompt=5, output=20),), concurrency=3)
    async with FakeVllm() as fake:
        parts = [
            _work(Run(scenario, fake.url, "fake", 0, 1, "s", None, {"all": {}}, 10.0), n, 2, time.monotonic())
            for n in (0, 1)
        ]
        records = [record for part in await asyncio.gather(*parts) for record in part.records]
    moments = sorted([(r.sent, 1) for r in records] + [(r.ended, -1) for r in records])
    in_flight, most = 0, 0
    for _, change in moments:
        in_flight += change
        most = max(most, in_flight)
    assert len(records) > 6
    assert most == 3


async def test_a_client_that_is_refused_stays_away():
    scenario = Scenario("x", (Phase(0.4),), (Request(prompt=5, output=2),), concurrency=1)
    async with FakeVllm(faults=[Fault(FaultKind.STATUS)]) as fake:
        worked = await _work(Run(scenario, fake.url, "fake", 0, 1, "s", None, {"all": {}}, 1.0), 0, 1, time.monotonic())
    assert [record.refused for record in worked.records] == [True]
