"""Anthropic's Python SDK with nothing changed but its base URL."""

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import MESSAGES, gateway

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "one two"}]


def sdk(kvgate, key="unused", **options):
    import anthropic

    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{kvgate.port}", api_key=key, **options)


async def ask(client, **fields):
    return await client.messages.create(**{"model": "fake", "messages": HELLO, "max_tokens": 5, **fields})


async def test_answers_whole_and_streamed():
    async with FakeVllm() as fake, gateway(fake) as kvgate, sdk(kvgate) as client:
        whole = await ask(client)
        assert (whole.content[0].text, whole.usage.input_tokens) == (" 0 1 2 3 4", 2)
        async with client.messages.stream(model="fake", messages=HELLO, max_tokens=5) as stream:
            assert "".join([text async for text in stream.text_stream]) == " 0 1 2 3 4"
            assert (await stream.get_final_message()).usage.output_tokens == 5
        assert (await client.messages.count_tokens(model="fake", messages=HELLO)).input_tokens == 2


async def test_a_refusal_is_the_sdks_own_error_and_not_retried():
    import anthropic

    settings = FakeSettings(max_model_len=100)
    async with FakeVllm(settings) as fake, gateway(fake) as kvgate, sdk(kvgate, max_retries=5) as client:
        with pytest.raises(anthropic.NotFoundError):
            await ask(client, model="other")
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ask(client, messages=[{"role": "user", "content": "w " * 300}])
        assert "100 tokens" in refused.value.message
        assert refused.value.body["error"]["type"] == "invalid_request_error"
        assert sum((await kvgate.outcomes()).values()) == 2


async def test_a_key_is_taken_as_this_sdk_sends_it():
    import anthropic

    auth = {"keys": [{"name": "a", "key": "right"}]}
    async with FakeVllm() as fake, gateway(fake, auth=auth, ready=False) as kvgate:
        async with sdk(kvgate, key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await ask(client)
        async with sdk(kvgate, key="right") as client:
            assert (await ask(client)).usage.output_tokens == 5


async def test_a_stream_that_breaks_raises_what_the_sdk_raises_for_anthropic():
    import anthropic

    async with FakeVllm() as fake, gateway(fake) as kvgate, sdk(kvgate) as client:
        fake.faults.add(Fault(FaultKind.RESET_MID_STREAM, after=3, path=MESSAGES))
        texts = []

        async def read():
            async with client.messages.stream(model="fake", messages=HELLO, max_tokens=20) as stream:
                async for text in stream.text_stream:
                    texts.append(text)  # noqa: PERF401  # what came before counts too

        with pytest.raises(anthropic.APIError) as broken:
            await read()
        assert "".join(texts) == " 0 1 2"
        assert "The endpoint failed" in str(broken.value)


@pytest.mark.engine
async def test_a_real_model_answers(kvgate):
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=kvgate.url, api_key="unused", timeout=600) as client:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        asked = {"model": "smollm2", "messages": question, "max_tokens": 30, "extra_body": {"temperature": 0}}
        whole = await client.messages.create(**asked)
        assert "Paris" in whole.content[0].text
        async with client.messages.stream(**asked) as stream:
            assert "".join([text async for text in stream.text_stream]) == whole.content[0].text
        counted = await client.messages.count_tokens(model="smollm2", messages=question)
        assert counted.input_tokens == whole.usage.input_tokens
