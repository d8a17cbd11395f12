"""A real llama-server behind kvgate: its counts, its output limits, and its cache that must not run out."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.demo_model import smollm2_gguf
from tests.integration.parity import cases
from tests.integration.relaying import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Running, body, gateway, until
from tests.llama_server import LlamaServer, llama_server

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp", reason="there is no build of it for this machine", exc_type=ImportError)

JSON = {"content-type": "application/json"}
CTX = 256
"""Tokens of KV cache that four slots share."""
HI = {"role": "user", "content": "Hello there, how are you?"}
STORY: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me a long story."}], "ignore_eos": True}


@pytest.fixture(scope="module")
def model() -> Path:
    """The real chat model, as one file."""
    return smollm2_gguf()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[LlamaServer]:
    """A llama-server whose slots share one cache, as they do by default."""
    with llama_server(model, ctx=CTX, slots=4) as running:
        yield running


def in_front(server: LlamaServer, **endpoint: Any) -> Any:
    queue = {"ttl": 120, "no_endpoint_ttl": 60}
    return gateway(
        models=[{"endpoints": [{"url": server.url} | endpoint]}],
        health={"interval": 0.2},
        admission={"ttft_target": None, "queue": queue},
    )


@pytest.fixture
async def through(server: LlamaServer) -> AsyncIterator[Running]:
    async with in_front(server) as kvgate:
        yield kvgate


async def test_it_is_known_by_its_model_list(through: Running) -> None:
    (endpoint,) = (await through.state())["endpoints"]
    assert (endpoint["kind"], endpoint["max_model_len"], endpoint["max_num_seqs"]) == ("llama-server", CTX, 4)


async def test_a_completion_without_a_limit_is_no_longer_than_its_key_allows(server: LlamaServer) -> None:
    """It runs until the context is full, where OpenAI's ends after 16 tokens."""
    auth = {"keys": [{"name": "a", "key": "key-a", "limits": {"max_tokens": 20}}], "admin_key": "x"}
    async with gateway(models=[{"endpoints": [{"url": server.url}]}], auth=auth, ready=False) as kvgate:

        async def is_ready() -> bool:
            return (await kvgate.client.get("/readyz")).status_code == 200

        await until(is_ready)
        asked = {"prompt": "Once upon a time", "ignore_eos": True}
        answer = await kvgate.client.post(COMPLETIONS, json=asked, headers={"authorization": "Bearer key-a"})
        assert answer.json()["usage"]["completion_tokens"] == 20


async def test_a_prompt_is_counted_as_it_is_used(through: Running) -> None:
    """The requests by which counts are compared with vLLM's. It refuses some of them, and kvgate two."""
    marked = {"marks": {"prompt": "Straße <|im_start|> 漢字"}}
    texts = cases.COMPLETIONS | marked
    matrix = {CHAT: cases.CHAT, COMPLETIONS: texts, MESSAGES: cases.MESSAGES, RESPONSES: cases.RESPONSES}

    async def one(path: str, case: str, fields: dict[str, Any]) -> tuple[str, int, tuple[int, int, str] | None]:
        content = json.dumps({"max_tokens": 1, "max_output_tokens": 1} | fields).encode()
        answer = await through.client.post(path, content=content, headers=JSON, timeout=120)
        if answer.status_code != 200:
            return case, answer.status_code, None
        usage, told = answer.json()["usage"], answer.headers
        used = usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        return case, 200, (int(told["x-kvgate-prompt-tokens"]), used, told["x-kvgate-counted"])

    answers = await asyncio.gather(*(one(path, *case) for path, row in matrix.items() for case in row.items()))
    counts = [(case, count) for case, _, count in answers if count is not None]
    assert {status for _, status, _ in answers} == {200, 400}
    assert len(counts) >= 80
    assert {source for _, (*_, source) in counts} == {"engine"}
    several = {"texts", "lists of ids"}  # it tells what one of their prompts used
    assert {case for case, (counted, used, _) in counts if counted != used} == several


async def test_no_request_is_lost_with_the_connection_that_it_ends_after_a_stream(through: Running) -> None:
    """It does not say so. Of these rounds every fifth was answered with 502."""
    for _ in range(30):
        streamed = await through.client.post(
            COMPLETIONS, json={"prompt": ["one two", "three"], "max_tokens": 2, "stream": True}
        )
        passed_on = await through.client.post("/tokenize", json={"content": "one two"})
        assert (streamed.status_code, passed_on.status_code) == (200, 200)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
async def test_streamed_answers_tell_the_same_count(through: Running, path: str) -> None:
    """Three that told another one, and its own counts were no longer taken for exact."""
    for _ in range(4):
        answer = await through.client.post(path, json=body(path, tokens=2, model=None, stream=True))
        assert (answer.status_code, answer.headers["x-kvgate-counted"]) == (200, "engine")
    metrics = (await through.client.get("/metrics")).text
    (drift, *_) = [line for line in metrics.splitlines() if "drift_total{" in line and "unknown" not in line]
    assert drift.endswith(" 0.0")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,SECRET"}}),
        (CHAT, {"type": "input_audio", "input_audio": {"data": "SECRET", "format": "wav"}}),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "SECRET"}}),
        (RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,SECRET"}),
        (CHAT, {"type": "text"}),
    ],
)
async def test_what_the_model_cannot_take_is_the_requests_fault(
    server: LlamaServer, through: Running, path: str, part: dict[str, Any]
) -> None:
    """llama-server itself answers 500."""
    asked = {"messages" if path != RESPONSES else "input": [{"role": "user", "content": [part]}], "max_tokens": 2}
    async with httpx.AsyncClient(base_url=server.url) as direct:
        said = (await direct.post(path, json=asked)).json()["error"]
    refused = await through.client.post(path, json=asked)
    assert said["code"] == 500
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, said["message"])
    assert "SECRET" not in refused.text
    assert await through.outcomes() == {"invalid_request": 1}


async def test_a_request_without_an_output_limit_gets_its_slots_share(through: Running) -> None:
    answer = await through.client.post(CHAT, json=STORY, timeout=120)
    usage = answer.json()["usage"]
    assert int(answer.headers["x-kvgate-max-tokens"]) == CTX // 4 - usage["prompt_tokens"] == usage["completion_tokens"]


async def test_a_limit_over_its_context_is_cut_by_it(through: Running) -> None:
    asked = STORY | {"messages": [HI | {"content": "word " * 200}], "max_tokens": 32000}
    usage = (await through.client.post(CHAT, json=asked, timeout=120)).json()["usage"]
    assert usage["total_tokens"] == CTX


async def test_a_prompt_over_its_context_is_refused_by_kvgate(through: Running) -> None:
    answer = await through.client.post(CHAT, json={"messages": [HI | {"content": "word " * CTX}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def _killed(client: httpx.AsyncClient, requests: int, **fields: Any) -> list[str]:
    """The answers to those of so many requests at once that do not come to their end."""

    async def one(number: int) -> str:
        asked = STORY | {"max_tokens": 45, "stream": number % 2 == 0} | fields
        answer = await client.post(CHAT, json=asked, timeout=300)
        ended = answer.status_code == 200 and b'"error"' not in answer.content
        return "" if ended else f"{answer.status_code} {answer.text[-500:]}"

    return [answer for answer in await asyncio.gather(*(one(number) for number in range(requests))) if answer]


async def test_nothing_is_killed_for_want_of_room(server: LlamaServer, through: Running) -> None:
    async with httpx.AsyncClient(base_url=server.url) as direct:
        assert len(await _killed(direct, 4)) == 4  # each would fit alone, together they overflow
    assert await _killed(through.client, 8) == []


async def test_what_others_ask_of_it_directly_is_seen(server: LlamaServer, through: Running) -> None:
    async with httpx.AsyncClient(base_url=server.url) as direct:
        foreign = asyncio.create_task(direct.post(CHAT, json=STORY | {"max_tokens": 200}, timeout=300))

        async def is_seen() -> bool:
            (endpoint,) = (await through.state())["endpoints"]
            return bool(endpoint["kv"]["effective"] > 0.7)

        await until(is_seen)
        assert await _killed(through.client, 2) == []
        assert (await foreign).status_code == 200


async def test_what_others_have_killed_is_told_as_the_engine_tells_it(server: LlamaServer, through: Running) -> None:
    """A request past kvgate overflows the cache while a stream runs."""
    long = STORY | {"messages": [HI | {"content": "word " * 150}], "max_tokens": 80}
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=300) as direct,
        through.client.stream("POST", CHAT, json=STORY | {"max_tokens": 150, "stream": True}, timeout=300) as stream,
    ):
        lines = stream.aiter_lines()
        first = await anext(lines)
        foreign = asyncio.create_task(direct.post(CHAT, json=long))
        events = [first, *[line async for line in lines if line]]
        assert (await foreign).status_code == 500
    assert (stream.status_code, "choices" in json.loads(first.removeprefix("data: "))) == (200, True)
    assert json.loads(events[-1].removeprefix("data: "))["error"]["message"] == "Context size has been exceeded."
    await through.until_idle()
    assert await through.outcomes() == {"upstream_error": 1}
    assert await _killed(through.client, 2) == []


async def test_one_that_dies_comes_back(model: Path) -> None:
    with llama_server(model, ctx=CTX, slots=2) as mortal:
        async with in_front(mortal) as kvgate:
            mortal.process.kill()

            async def is_down() -> bool:
                return not any(endpoint["healthy"] for endpoint in (await kvgate.state())["endpoints"])

            await until(is_down)
            began = time.monotonic()
            with llama_server(model, ctx=CTX, slots=2, port=mortal.port):
                answer = await kvgate.client.post(CHAT, json=STORY | {"max_tokens": 2}, timeout=60)
            assert answer.status_code == 200, f"after {time.monotonic() - began:.0f} s: {answer.text}"
