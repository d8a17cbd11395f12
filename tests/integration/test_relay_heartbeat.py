"""Streaming clients that wait, with `queue.heartbeat` on."""

import asyncio
import contextlib

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import APIS, CHAT, MESSAGES, RESPONSES, events, gateway, last_error, until

HEARTBEAT = ": kvgate queued"


@contextlib.asynccontextmanager
async def occupied(*, tokens=1000, **queue):
    """A gateway whose only engine has one place, and that is taken."""
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        admission = {"ttft_target": None, "queue": {"heartbeat": 0.02, **queue}}
        async with gateway(fake, models=models, admission=admission) as kvgate:
            running = asyncio.create_task(kvgate.post(tokens=tokens, ignore_eos=True))
            await until(lambda: fake.scheduler.running)
            yield fake, kvgate
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def code_of(path, text):
    error = last_error(text)
    return (
        error["error"]["type"] if path == MESSAGES else error["code"] if path == RESPONSES else error["error"]["code"]
    )


@pytest.mark.parametrize("path", APIS)
async def test_who_waits_is_told_so_and_then_gets_its_answer(path):
    async with occupied(tokens=40) as (_, kvgate):
        answer = await kvgate.post(path, stream=True, tokens=5)
        told = events(answer.text)
        assert told[0] == HEARTBEAT
        waited = [event for event in told if event == HEARTBEAT]
        assert told[: len(waited)] == waited, "none comes once the answer has begun"
        assert "error" not in answer.text.replace('"error":null', "")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert int(answer.headers["x-kvgate-prompt-tokens"]) > 0
        assert "x-kvgate-endpoint" not in answer.headers
        assert await kvgate.outcomes() == {"completed": 2}


@pytest.mark.parametrize("path", APIS)
async def test_a_refusal_comes_as_an_error_of_the_protocol(path):
    async with occupied(ttl=0.1) as (fake, kvgate):
        answer = await kvgate.post(path, stream=True, tokens=5)
        assert answer.status_code == 200
        assert events(answer.text)[0] == HEARTBEAT
        assert code_of(path, answer.text) in {"queue_timeout", "rate_limit_error"}
        assert len([request for request in fake.seen if request.path in APIS]) == 1
        assert await kvgate.outcomes() == {"queue_timeout": 1}


async def test_a_client_that_does_not_stream_gets_its_status():
    async with occupied(ttl=0.1) as (_, kvgate):
        answer = await kvgate.post(tokens=5)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_timeout")


@pytest.mark.parametrize("kind", [FaultKind.STATUS, FaultKind.CLOSE_BEFORE_ANSWER])
async def test_another_try_is_still_possible_after_a_heartbeat(kind):
    """The engine is busy, or fails, for a request that has waited before and waits again."""
    async with occupied(tokens=40) as (fake, kvgate):
        asked = asyncio.create_task(kvgate.post(stream=True, tokens=5))
        await asyncio.sleep(0.05)
        fake.faults.add(Fault(kind, path=CHAT))
        answer = await asked
        assert events(answer.text)[0] == HEARTBEAT
        assert "rror" not in answer.text.replace('"error":null', "")
        assert len([request for request in fake.seen if request.path == CHAT]) == 3
        assert await kvgate.outcomes() == {"completed": 2}


async def test_what_the_engine_refuses_is_told_in_the_stream_too():
    async with occupied(tokens=40) as (fake, kvgate):
        asked = asyncio.create_task(kvgate.post(stream=True, tokens=5))
        await asyncio.sleep(0.05)
        fake.faults.add(Fault(FaultKind.STATUS, path=CHAT, status=422))
        answer = await asked
        assert answer.status_code == 200
        assert code_of(CHAT, answer.text) == "invalid_request"
        assert await kvgate.outcomes() == {"completed": 1, "endpoint_refused": 1}


async def test_a_client_that_leaves_between_two_heartbeats_leaves_nothing():
    async with occupied(tokens=40) as (_, kvgate):
        asked = asyncio.create_task(kvgate.post(stream=True, tokens=5))
        await asyncio.sleep(0.05)
        asked.cancel()

        async def gone():
            return (await kvgate.outcomes()).get("client_closed") == 1

        await until(gone)
        await kvgate.until_idle()
