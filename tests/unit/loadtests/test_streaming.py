"""The timed client, against the fake vLLM."""

import asyncio

import aiohttp
import pytest

from loadtests.overload import figures
from loadtests.streaming import Outcome, stream_completion
from loadtests.workload import Arrival
from tests.fakes.vllm import FakeVllm, Fault, FaultKind

ARRIVAL = Arrival(at=0.0, prompt=(1, 2, 3), output_tokens=5)


async def outcome(*faults: Fault) -> Outcome:
    async with FakeVllm(faults=faults) as fake, aiohttp.ClientSession() as session:
        epoch = asyncio.get_running_loop().time()
        return await stream_completion(session, fake.url, "fake", ARRIVAL, epoch)


async def test_a_whole_answer_is_timed_token_by_token():
    got = await outcome()
    assert got.loss is None
    assert (got.completion_tokens, len(got.events)) == (5, 5)
    assert 0 < got.ttft <= got.ended


@pytest.mark.parametrize(
    ("fault", "loss"),
    [
        (Fault(FaultKind.STATUS), "status 503"),
        (Fault(FaultKind.BUSY_IN_STREAM), "error event 503"),
        (Fault(FaultKind.RESET_MID_STREAM, after=2), "ClientPayloadError"),
        (Fault(FaultKind.ABORT, after=2), "ended after 2 of 5 tokens"),
        (Fault(FaultKind.NO_DONE), "ended after 0 of 5 tokens"),
    ],
)
async def test_anything_else_is_lost_and_says_why(fault, loss):
    assert (await outcome(fault)).loss == loss


def test_lost_requests_leave_no_trace_in_the_times():
    whole = Outcome(ARRIVAL, started=0.0, events=[1.0, 1.5, 4.0], ended=4.0, completion_tokens=5)
    lost = Outcome(ARRIVAL, started=0.0, ended=2.0, loss="status 503")
    measured = figures([whole, lost])
    assert measured["requests lost"] == 1
    assert measured["output tokens/s"] == 5 / 4
    assert (measured["TTFT p99 s"], measured["worst silence p99 s"]) == (1.0, 2.5)
