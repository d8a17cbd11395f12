"""The timed client, against the fake vLLM."""

import asyncio

import aiohttp
import pytest

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
