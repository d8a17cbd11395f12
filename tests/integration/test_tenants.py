"""Limits by key, as a client meets them."""

import asyncio
import hashlib

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import CHAT, body, gateway, until

pytestmark = pytest.mark.slow

BOB = {"name": "bob", "key_sha256": hashlib.sha256(b"key-b").hexdigest()}


def keys(**alice):
    return {"keys": [{"name": "alice", "key": "key-a", **alice}, BOB], "admin_key": "x"}


def of(name):
    return {"authorization": f"Bearer key-{name}"}


async def ready(kvgate):
    async def is_ready():
        return (await kvgate.client.get("/readyz")).status_code == 200

    await until(is_ready)


async def ask(kvgate, name, **fields):
    return await kvgate.client.post(CHAT, json=body(**fields), headers=of(name))


async def test_a_rate_is_told_with_each_answer_and_refuses_what_is_over_it():
    import openai

    auth = keys(limits={"requests_per_minute": 2, "tokens_per_minute": 60})
    async with FakeVllm() as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        await ready(kvgate)
        first, second, third = [await ask(kvgate, "a") for _ in range(3)]
        assert [answer.status_code for answer in (first, second, third)] == [200, 200, 429]
        left = [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second, third)]
        assert left == ["1", "0", "0"]
        used = 2 * int(first.headers["x-kvgate-prompt-tokens"]) + 5  # two prompts and an answer
        assert 0 <= used - (60 - int(second.headers["x-ratelimit-remaining-tokens"])) <= 1, "one comes back each second"
        error = third.json()["error"]
        assert error["code"] == third.headers["x-kvgate-reason"] == "rate_limit_exceeded"
        assert "2 requests per minute" in error["message"]
        assert 25 <= int(third.headers["retry-after"]) <= 30
        assert (await ask(kvgate, "b")).status_code == 200, "bob has no limits"
        assert "x-ratelimit-limit-requests" not in (await ask(kvgate, "b")).headers
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{kvgate.port}/v1", api_key="key-a", max_retries=0)
        with pytest.raises(openai.RateLimitError) as raised:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "one"}])
        assert raised.value.code == "rate_limit_exceeded"
        await client.close()


async def test_requests_at_once_are_counted_until_they_have_ended():
    settings = FakeSettings(step_seconds=0.02, output_tokens=1000)
    auth = keys(limits={"concurrent": 2})
    async with FakeVllm(settings) as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        await ready(kvgate)
        running = [asyncio.create_task(ask(kvgate, "a", tokens=1000)) for _ in range(2)]

        async def generating():
            return sum(request.path == CHAT for request in fake.seen) == 2

        await until(generating)
        assert (await ask(kvgate, "a")).status_code == 429
        running.pop().cancel()

        async def has_room():
            return (await ask(kvgate, "a", tokens=1)).status_code == 200

        await until(has_room)
        running[0].cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_key_uses_and_sees_its_models_only():
    auth = keys(models=["other"])
    async with FakeVllm() as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        await ready(kvgate)
        answer = await ask(kvgate, "a")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        relayed = await kvgate.client.post("/v1/embeddings", json={"model": "fake", "input": "x"}, headers=of("a"))
        assert relayed.status_code == 404
        assert (await kvgate.client.get("/v1/models", headers=of("a"))).json()["data"] == []
        assert (await ask(kvgate, "b")).status_code == 200


async def test_an_output_limit_is_set_for_those_who_set_none():
    auth = keys(limits={"max_tokens": 7})
    async with FakeVllm(FakeSettings(output_tokens=50)) as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        await ready(kvgate)
        assert (await ask(kvgate, "a", max_tokens=None)).json()["usage"]["completion_tokens"] == 7
        assert (await ask(kvgate, "a", max_tokens=3)).json()["usage"]["completion_tokens"] == 3
        refused = await ask(kvgate, "a", max_tokens=8)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
        assert (await ask(kvgate, "b", max_tokens=None)).json()["usage"]["completion_tokens"] == 50


def said(words):
    return [{"role": "user", "content": "w " * words}]


async def test_a_share_of_the_cache_holds_back_its_key_alone():
    settings = FakeSettings(num_blocks=101, step_seconds=0.02, output_tokens=1000)
    auth = keys(limits={"kv_share": 0.3})
    async with FakeVllm(settings) as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        await ready(kvgate)
        block = settings.block_size
        running = [asyncio.create_task(ask(kvgate, "a", messages=said(16 * block), tokens=1000)) for _ in range(2)]

        async def one_waits():
            state = (await kvgate.client.get("/kvgate/state", headers={"authorization": "Bearer x"})).json()
            return (state["queues"][0]["depth"], state["endpoints"][0]["in_flight"]) == (1, 1)

        await until(one_waits)
        assert (await ask(kvgate, "b", messages=said(16 * block), tokens=1)).status_code == 200
        refused = await ask(kvgate, "a", messages=said(40 * block))
        assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
        assert "tokens of this model's KV cache" in refused.json()["error"]["message"]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
