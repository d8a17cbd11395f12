"""OpenAI's Python SDK with nothing changed but its base URL: errors before a fake, answers of a real model."""

import asyncio
import re
import time
from itertools import count

import httpx
import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import CHAT, COMPLETIONS, RESPONSES, gateway
from tests.until import until

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "one two"}]


def sdk(kvgate, key="unused", **options):
    import openai

    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{kvgate.port}/v1", api_key=key, **options)


async def ask(client, **fields):
    asked = {"model": "fake", "messages": HELLO, "max_tokens": 5, **fields}
    return await client.chat.completions.create(**asked)


def generations(fake):
    return [request for request in fake.seen if request.path in {CHAT, COMPLETIONS, RESPONSES}]


async def test_answers_whole_and_streamed():
    async with FakeVllm() as fake, gateway(fake) as kvgate, sdk(kvgate) as client:
        whole = await ask(client)
        assert (whole.choices[0].message.content, whole.usage.prompt_tokens) == (" 0 1 2 3 4", 2)
        assert whole._request_id
        stream = await ask(client, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " 0 1 2 3 4"
        assert [chunk.usage for chunk in chunks if chunk.usage] == []
        stream = await ask(client, stream=True, stream_options={"include_usage": True})
        assert [chunk.usage.completion_tokens async for chunk in stream if chunk.usage] == [5]
        async with client.chat.completions.stream(model="fake", messages=HELLO) as helper:
            final = await helper.get_final_completion()
        assert final.choices[0].message.content.endswith(" 61 62")
        completion = await client.completions.create(model="fake", prompt="a b c", max_tokens=3)
        assert (completion.choices[0].text, completion.usage.prompt_tokens) == (" 0 1 2", 3)
        response = await client.responses.create(model="fake", input="a b", max_output_tokens=3)
        assert response.output_text == " 0 1 2"
        assert (await client.responses.retrieve(response.id)).id == response.id
        assert [model.id async for model in client.models.list()] == ["fake"]


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "other"}, "NotFoundError", "model_not_found"),
        ({"messages": [{"role": "user", "content": "w " * 3000}]}, "BadRequestError", "context_length_exceeded"),
        ({"max_tokens": -1}, "BadRequestError", "invalid_request"),
        ({"extra_body": {"kv_transfer_params": {"a": 1}}}, "BadRequestError", "forbidden_field"),
    ],
)
async def test_a_refusal_is_the_sdks_own_error_and_not_retried(fields, error, code):
    import openai

    async with FakeVllm() as fake, gateway(fake) as kvgate, sdk(kvgate, max_retries=5) as client:
        with pytest.raises(getattr(openai, error)) as refused:
            await ask(client, **fields)
        assert refused.value.code == code
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert sum((await kvgate.outcomes()).values()) == 1
        assert generations(fake) == []


async def test_a_wrong_key_is_an_authentication_error():
    import openai

    auth = {"keys": [{"name": "a", "key": "right"}]}
    async with FakeVllm() as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        async with sdk(kvgate, key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await ask(client)
            assert refused.value.code == "invalid_api_key"
        async with sdk(kvgate, key="right") as client:
            assert (await ask(client)).usage.completion_tokens == 5


async def test_the_sdk_comes_back_when_it_was_told_to():
    answers = []

    async def note(response: httpx.Response) -> None:
        answers.append((time.monotonic(), response.status_code, response.headers.get("retry-after-ms")))

    async with FakeVllm(FakeSettings(step_seconds=0.02)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        hooked = httpx.AsyncClient(event_hooks={"response": [note]})
        async with (
            gateway(fake, models=models, admission={"queue": {"max_requests": 0}}) as kvgate,
            sdk(kvgate, max_retries=10, http_client=hooked) as client,
        ):
            first = asyncio.create_task(kvgate.post(tokens=60))
            await until(lambda: fake.scheduler.running)
            assert (await ask(client)).usage.completion_tokens == 5
            assert (await first).status_code == 200
    assert answers[-1][1] == 200
    refused = answers[:-1]
    assert refused
    for (at, status, wait), (next_at, *_) in zip(refused, answers[1:], strict=True):
        assert status == 429
        assert next_at - at >= int(wait) / 1000


async def test_the_sdk_tries_again_what_an_endpoint_failed_on():
    async with FakeVllm() as fake, gateway(fake) as kvgate, sdk(kvgate, max_retries=2) as client:
        fake.faults.add(Fault(FaultKind.CLOSE_BEFORE_ANSWER, path=CHAT, times=2))
        assert (await ask(client)).usage.completion_tokens == 5
        assert await kvgate.outcomes() == {"upstream_error": 1, "completed": 1}


async def test_a_stream_that_breaks_raises_what_the_sdk_raises_for_openai():
    import openai

    async with FakeVllm() as fake, gateway(fake) as kvgate, sdk(kvgate) as client:
        fake.faults.add(Fault(FaultKind.RESET_MID_STREAM, after=3, path=CHAT))
        texts = []

        async def read():
            async for chunk in await ask(client, stream=True, max_tokens=20):
                texts.append(chunk.choices[0].delta.content)  # noqa: PERF401  # what came before counts too

        with pytest.raises(openai.APIError) as broken:
            await read()
        assert "".join(texts) == " 0 1 2"
        assert broken.value.code == "upstream_error"
        fake.faults.add(Fault(FaultKind.RESET_MID_STREAM, after=3, path=RESPONSES))
        stream = await client.responses.create(model="fake", input="a b", max_output_tokens=20, stream=True)
        assert [event.code async for event in stream if event.type == "error"] == ["upstream_error"]


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
async def real(kvgate):
    import openai

    async with openai.AsyncOpenAI(base_url=f"{kvgate.url}/v1", api_key="unused", timeout=600) as client:
        yield client


@pytest.mark.engine
async def test_a_real_model_answers_in_every_api(real):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    whole = await real.chat.completions.create(model="smollm2", messages=question, max_tokens=30, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    stream = await real.chat.completions.create(
        model="smollm2", messages=question, max_tokens=30, temperature=0, stream=True
    )
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 3, "it came in one piece"
    completion = await real.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=5)
    assert completion.usage.completion_tokens == 5
    response = await real.responses.create(
        model="smollm2", input="What is the capital of France?", max_output_tokens=30, temperature=0
    )
    assert "Paris" in response.output_text


@pytest.mark.engine
async def test_a_real_model_calls_a_tool_and_hears_its_result(real):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    forced = {"type": "function", "function": {"name": "get_weather"}}
    asked = {"model": "smollm2", "tools": [WEATHER], "max_tokens": 60, "temperature": 0}
    answer = await real.chat.completions.create(messages=messages, tool_choice=forced, **asked)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    streamed = ""
    async for chunk in await real.chat.completions.create(messages=messages, tool_choice=forced, stream=True, **asked):
        for piece in chunk.choices[0].delta.tool_calls or ():
            streamed += piece.function.arguments or ""
    assert streamed == call.function.arguments
    messages += [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"},
    ]
    told = await real.chat.completions.create(messages=messages, **asked)
    assert told.usage.prompt_tokens > answer.usage.prompt_tokens


@pytest.mark.engine
async def test_a_real_engines_own_refusal_reaches_the_sdk(real):
    import openai

    with pytest.raises(openai.BadRequestError):
        await real.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "x"}], max_tokens=5, temperature=-3
        )
    with pytest.raises(openai.BadRequestError) as refused:
        await real.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "w " * 5000}])
    assert refused.value.code == "context_length_exceeded"
    assert "1024" in refused.value.message


async def test_who_waits_as_told_is_served_beside_those_who_do_not():
    """Several times what the engine can do, of clients of the same flow that try again every fifth of a second."""
    import openai

    stop = asyncio.Event()
    answered = []
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models, admission={"ttft_target": 1.0}) as kvgate:

            async def rude(number):
                async with sdk(kvgate, max_retries=0) as client:
                    for turn in count():
                        while not stop.is_set():
                            try:
                                await ask(client, messages=said(f"{number} {turn}"), max_tokens=30)
                                answered.append(number)
                                break
                            except openai.RateLimitError:
                                await asyncio.sleep(0.2)
                        if stop.is_set():
                            return

            async def polite(number):
                async with sdk(kvgate) as client:  # tries three times in all
                    for turn in range(2):
                        await ask(client, messages=said(f"polite {number} {turn}"), max_tokens=30)

            crowd = [asyncio.create_task(rude(number)) for number in range(10)]
            await until(lambda: len(answered) >= 10)  # the gateway learns how fast the engine is
            try:
                await asyncio.gather(*(polite(number) for number in range(2)))
            finally:
                stop.set()
                await asyncio.gather(*crowd)
            metrics = (await kvgate.client.get("/metrics")).text
    returns = re.search(r'^kvgate_returns_total{model="fake"} (\S+)', metrics, re.MULTILINE)
    assert float(returns[1]) > 20


def said(words):
    return [{"role": "user", "content": words}]
