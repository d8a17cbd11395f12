"""Streaming clients that wait, with `queue.heartbeat` on."""

import asyncio
import contextlib
import re

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import APIS, CHAT, MESSAGES, RESPONSES, body, events, gateway, last_error, until

HEARTBEAT = re.compile(r": kvgate position=1( eta=\d+\.\d)?")


@contextlib.asynccontextmanager
async def occupied(**queue):
    """A gateway whose only engine has one place; that is taken until the engine is thawed."""
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        admission = {"ttft_target": None, "queue": {"heartbeat": 0.02, **queue}}
        async with gateway(fake, models=models, admission=admission) as kvgate:
            running = asyncio.create_task(kvgate.post(tokens=40, ignore_eos=True))
            await until(lambda: fake.scheduler.running)
            fake.freeze()
            yield fake, kvgate
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def after_a_heartbeat(kvgate, path, then):
    """The answer to a stream and its text; `then` is called when it was told that it waits."""
    async with kvgate.client.stream("POST", path, json=body(path, stream=True, tokens=5)) as answer:
        text = ""
        async for piece in answer.aiter_text():
            if not text:
                then()
            text += piece
    return answer, text


def code_of(path, text):
    error = last_error(text)
    return (
        error["error"]["type"] if path == MESSAGES else error["code"] if path == RESPONSES else error["error"]["code"]
    )


@pytest.mark.parametrize("path", APIS)
async def test_who_waits_is_told_so_and_then_gets_its_answer(path):
    async with occupied() as (fake, kvgate):
        answer, text = await after_a_heartbeat(kvgate, path, fake.thaw)
        told = events(text)
        waited = [event for event in told if HEARTBEAT.fullmatch(event)]
        assert waited
        assert told[: len(waited)] == waited, "none comes once the answer has begun"
        assert "error" not in text.replace('"error":null', "")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert int(answer.headers["x-kvgate-prompt-tokens"]) > 0
        assert "x-kvgate-endpoint" not in answer.headers
        assert await kvgate.outcomes() == {"completed": 2}


@pytest.mark.parametrize("path", APIS)
async def test_a_refusal_comes_as_an_error_of_the_protocol(path):
    async with occupied(ttl=0.1) as (fake, kvgate):
        answer = await kvgate.post(path, stream=True, tokens=5)
        assert answer.status_code == 200
        assert HEARTBEAT.fullmatch(events(answer.text)[0])
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
    async with occupied() as (fake, kvgate):

        def fail_once():
            fake.faults.add(Fault(kind, path=CHAT))
            fake.thaw()

        _, text = await after_a_heartbeat(kvgate, CHAT, fail_once)
        assert HEARTBEAT.fullmatch(events(text)[0])
        assert "rror" not in text.replace('"error":null', "")
        assert len([request for request in fake.seen if request.path == CHAT]) == 3
        assert await kvgate.outcomes() == {"completed": 2}


async def test_what_the_engine_refuses_is_told_in_the_stream_too():
    async with occupied() as (fake, kvgate):

        def refuse():
            fake.faults.add(Fault(FaultKind.STATUS, path=CHAT, status=422))
            fake.thaw()

        answer, text = await after_a_heartbeat(kvgate, CHAT, refuse)
        assert answer.status_code == 200
        assert code_of(CHAT, text) == "invalid_request"
        assert await kvgate.outcomes() == {"completed": 1, "endpoint_refused": 1}


async def test_a_client_that_leaves_between_two_heartbeats_leaves_nothing():
    async with occupied() as (fake, kvgate):
        async with kvgate.client.stream("POST", CHAT, json=body(stream=True, tokens=5)) as answer:
            assert HEARTBEAT.match(await anext(answer.aiter_text()))

        async def gone():
            return (await kvgate.outcomes()).get("client_closed") == 1

        await until(gone)
        fake.thaw()
        await kvgate.until_idle()
