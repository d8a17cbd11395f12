"""What a client gets of a real vLLM through kvgate is what it gets of it directly, byte for byte."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.wire.request import Api
from gateway.wire.stream import StreamReader
from tests.conftest import Vllm, VllmFactory
from tests.integration.relaying import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Running, gateway, until

pytestmark = pytest.mark.engine

BATCH = "/v1/chat/completions/batch"
HI = {"role": "user", "content": "Hello there."}
CHAT_BODY: dict[str, Any] = {"messages": [HI], "max_tokens": 6, "seed": 7, "ignore_eos": True}
TEXT_BODY: dict[str, Any] = {"prompt": "one two three", "max_tokens": 6, "seed": 7, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}
EVERY = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Let me think."}]}

_TEXT = re.compile(rb'"(?:text|content)":"((?:[^"\\]|\\.)*)"')
_OWN = re.compile(rb'"(id|created|created_at|completed_at|response_id|item_id|request_id)":("[^"]*"|[\d.]+)')


def same(content: bytes) -> bytes:
    """An answer without what is another one each time."""
    return _OWN.sub(rb'"\1":0', content)


def joined(content: bytes) -> tuple[bytes, bytes]:
    """The text of a stream, and the rest of its last event: vLLM puts tokens that are late into one event."""
    return b"".join(_TEXT.findall(content)), same(content).rsplit(b'"choices":[]', 1)[-1]


@pytest.fixture(scope="module")
def forced(vllm: VllmFactory) -> Iterator[Vllm]:
    """An engine that sends usage to everybody, and tells of its tokenizer."""
    flags = ("--enable-force-include-usage", "--enable-tokenizer-info-endpoint")
    server = vllm(args=dict.fromkeys(flags))
    yield server
    server.stop()


def in_front(server: Vllm, model: Path) -> Any:
    models = [{"endpoints": [{"url": server.url}], "tokenizer": str(model)}]
    # An engine compiles for the first request of a kind, which takes a busy machine a minute.
    return gateway(models=models, health={"interval": 1.0, "hung_after": 600})


@pytest.fixture
async def through(random_vllm: Vllm, random_model: Path) -> AsyncIterator[Running]:
    async with in_front(random_vllm, random_model) as kvgate:
        yield kvgate


async def both(
    kvgate: Running, server: Vllm, path: str, fields: dict[str, Any]
) -> tuple[httpx.Response, httpx.Response]:
    asked = {"model": server.model} | fields
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as direct:
        return await kvgate.client.post(path, json=asked, timeout=600), await direct.post(path, json=asked)


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True, "max_tokens": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {"echo": True, "max_tokens": 0, "n": 2},
        {"echo": True, "max_tokens": 0, "prompt": ["one two", "three"]},
        {"echo": True, "max_tokens": 0, "stream": True},
        {"echo": True, "max_tokens": 0, "stream": True} | USAGE,
        {"echo": True, "max_tokens": 0, "prompt": [5] * 2047},
    ],
)
async def test_a_prompt_that_is_only_read(through: Running, random_vllm: Vllm, fields: dict[str, Any]) -> None:
    ours, theirs = await both(through, random_vllm, COMPLETIONS, TEXT_BODY | fields)
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text
    if fields.get("stream") and "stream_options" not in fields:  # ADR 3: it comes with usage, which kvgate asked for
        theirs_without = re.sub(rb',"system_fingerprint":"[^"]*"', b"", theirs.content)
        assert same(ours.content) == same(theirs_without)
    else:
        assert same(ours.content) == same(theirs.content)


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": -1, "echo": True}, {"prompt": None}])
async def test_what_reads_nothing_is_refused_by_both(
    through: Running, random_vllm: Vllm, fields: dict[str, Any]
) -> None:
    ours, theirs = await both(through, random_vllm, COMPLETIONS, TEXT_BODY | fields)
    assert (ours.status_code, theirs.status_code) == (400, 400)


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool", "function", "assistant", "odd"])
@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
async def test_content_that_is_not_there(
    through: Running, random_vllm: Vllm, role: str, content: dict[str, Any]
) -> None:
    message = {"role": role, "name": "f", "tool_call_id": "c"} | content
    ours, theirs = await both(through, random_vllm, CHAT, CHAT_BODY | {"messages": [HI, message, HI]})
    assert ours.status_code == theirs.status_code
    assert same(ours.content) == same(theirs.content)
    if theirs.status_code == 200:
        assert int(ours.headers["x-kvgate-prompt-tokens"]) == theirs.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_conversation_goes_with_its_token_ids(
    through: Running, random_vllm: Vllm, *, stream: bool
) -> None:
    async def takes_ids() -> bool:
        (counting,) = (await through.state())["counting"]
        return bool(counting["ids_to"])

    await until(takes_ids)
    fields = {"messages": [HI, HI | {"role": "assistant"}, HI | {"content": "What is it? " * 300}], "stream": stream}
    ours, theirs = await both(through, random_vllm, CHAT, CHAT_BODY | fields | (USAGE if stream else {}))
    if stream:
        assert joined(ours.content) == joined(theirs.content)
    else:
        assert same(ours.content) == same(theirs.content)
    assert int(ours.headers["x-kvgate-prompt-tokens"]) >= 500
    assert ours.headers["x-kvgate-counted"] == "local"


async def test_null_content_of_messages(through: Running, random_vllm: Vllm) -> None:
    fields = {"messages": [HI | {"content": None}], "max_tokens": 2}
    ours, theirs = await both(through, random_vllm, MESSAGES, fields)
    assert ours.status_code == theirs.status_code == 400
    assert ours.content == theirs.content


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [[HI], [HI, {"role": "assistant", "content": "Hi."}, HI]]},
        {"messages": [[HI]], "truncate_prompt_tokens": 5},
        {"messages": [[HI]], "tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_a_batch_is_counted_and_answered(through: Running, random_vllm: Vllm, fields: dict[str, Any]) -> None:
    ours, theirs = await both(through, random_vllm, BATCH, CHAT_BODY | fields)
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text
    assert same(ours.content) == same(theirs.content)
    assert int(ours.headers["x-kvgate-prompt-tokens"]) == theirs.json()["usage"]["prompt_tokens"]
    assert ours.headers["x-kvgate-counted"] == "local"


@pytest.mark.parametrize("fields", [{"messages": [HI]}, {"messages": []}, {"messages": [[HI]], "n": 2}])
async def test_a_batch_of_no_conversations_is_refused_by_both(
    through: Running, random_vllm: Vllm, fields: dict[str, Any]
) -> None:
    ours, theirs = await both(through, random_vllm, BATCH, CHAT_BODY | fields)
    assert (ours.status_code, theirs.status_code) == (400, 400)


async def test_a_batch_does_not_stream(through: Running) -> None:
    answer = await through.post(BATCH, model="random", messages=[[HI]], stream=True)
    assert answer.status_code == 400
    assert "`stream` must be false" in answer.json()["error"]["message"]


async def test_a_response_with_reasoning_is_counted_here(through: Running, random_vllm: Vllm) -> None:
    fields = {"input": [HI, THOUGHT, HI], "max_output_tokens": 2}
    ours, _ = await both(through, random_vllm, RESPONSES, fields)
    assert int(ours.headers["x-kvgate-prompt-tokens"]) == ours.json()["usage"]["input_tokens"]
    assert ours.headers["x-kvgate-counted"] == "local"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, TEXT_BODY | {"prompt_embeds": "QUJD"}),
        (RESPONSES, {"input": "Hi.", "previous_input_messages": [HI]}),
    ],
)
async def test_a_prompt_that_cannot_be_counted_is_refused(through: Running, path: str, fields: dict[str, Any]) -> None:
    answer = await through.client.post(path, json={"model": "random"} | fields)
    assert answer.status_code == 400
    assert "cannot be counted" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "fields"), [(CHAT, CHAT_BODY), (COMPLETIONS, TEXT_BODY)], ids=["chat", "completions"])
@pytest.mark.parametrize("options", [{}, USAGE, EVERY, {"stream_options": {"include_usage": False}}])
async def test_an_engine_that_sends_usage_to_everybody(
    forced: Vllm, random_model: Path, path: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    async with in_front(forced, random_model) as kvgate:
        asked = fields | {"stream": True, "temperature": 0} | options
        ours, theirs = (same(answer.content) for answer in await both(kvgate, forced, path, asked))
        assert theirs.count(b'"usage":{') >= 3
        # A busy engine merges tokens into one event now and then: their text is the same, and so is the end.
        assert ours.split(b"\n\n")[-3:] == theirs.split(b"\n\n")[-3:]
        assert b"".join(_TEXT.findall(ours)) == b"".join(_TEXT.findall(theirs))


async def test_who_asks_about_the_tokenizer_gets_the_engines_answer(forced: Vllm, random_model: Path) -> None:
    async with in_front(forced, random_model) as kvgate, httpx.AsyncClient() as client:
        ours = await kvgate.client.get("/tokenizer_info")
        assert ours.status_code == 200
        assert ours.content == (await client.get(f"{forced.url}/tokenizer_info")).content


@pytest.mark.parametrize(
    ("path", "api", "fields"), [(CHAT, Api.CHAT, CHAT_BODY), (COMPLETIONS, Api.COMPLETIONS, TEXT_BODY)]
)
@pytest.mark.parametrize("interval", [5, 1000])
@pytest.mark.parametrize("n", [1, 2])
def test_tokens_are_counted_however_many_a_client_wants_in_an_event(  # noqa: PLR0917
    random_vllm: Vllm, path: str, api: Api, fields: dict[str, Any], interval: int, n: int
) -> None:
    asked = fields | {"model": "random", "max_tokens": 43, "n": n, "stream": True, "stream_interval": interval} | USAGE
    most = 0
    for _ in range(5):  # a busy engine merges some events of an answer
        reader = StreamReader(api, strip_usage=False, interval=min(interval, 43), sequences=n)
        answer = httpx.post(random_vllm.url + path, json=asked, timeout=600)
        for event in answer.content.partition(b'"choices":[]')[0].split(b"\n\n")[:-1]:
            reader.feed(event + b"\n\n")
        assert reader.tokens <= (43 + 2 + min(interval, 43)) * n
        most = max(most, reader.tokens)
        if most >= 35 * n:
            break
    assert most >= 35 * n
    assert answer.content.count(b"\n\n") <= 43 * n / interval + 4 * n + 3
