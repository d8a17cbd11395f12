"""The fake vLLM answers in the shapes of the real one: keys and their order, events, reasons, errors, metrics."""

import asyncio
import json
import math
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import httpx
import pytest

from tests.conftest import QUICK_START
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind

pytestmark = pytest.mark.engine

LITERAL = {"object", "type", "role", "finish_reason", "stop_reason", "status", "code", "param", "reason", "sequence"}
"""Keys whose strings are part of the shape; of other strings and numbers only the kind is."""
MODEL = "random"
MESSAGES = [{"role": "user", "content": "alpha beta gamma"}]
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": "alpha beta gamma", "max_tokens": 4},
    "/v1/responses": {"input": "alpha beta gamma", "max_output_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}
CHAT, COMPLETIONS, RESPONSES, ANTHROPIC = PROMPTS
USAGE = {"stream_options": {"include_usage": True}}
EVERY_CHUNK = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TOO_LONG = "w " * 5000

GENERATIONS: list[tuple[str, dict[str, Any]]] = [
    *((path, {}) for path in PROMPTS),
    *((path, {"max_tokens": 1, "max_output_tokens": 1}) for path in PROMPTS),
    (CHAT, USAGE),
    (CHAT, EVERY_CHUNK),
    (CHAT, {"n": 2, "temperature": 1.0, **USAGE}),
    (CHAT, {"n": 2, "temperature": 1.0}),
    (CHAT, {"kv_transfer_params": {"prompt_token_ids": [300, 301, 302]}, "messages": []}),
    (COMPLETIONS, USAGE),
    (COMPLETIONS, EVERY_CHUNK),
    (COMPLETIONS, {"prompt": [300, 301, 302]}),
    (COMPLETIONS, {"prompt": [[300, 301], [302]], **USAGE}),
]
REFUSALS: list[tuple[str, dict[str, Any] | bytes]] = [
    *((path, {"model": "other"}) for path in PROMPTS),
    (CHAT, {"messages": "x"}),
    (CHAT, {"messages": None}),
    (CHAT, {"max_tokens": 9999}),
    (CHAT, {"max_tokens": -1}),
    (COMPLETIONS, {"max_tokens": 9999}),
    (CHAT, {"messages": [{"role": "user", "content": TOO_LONG}]}),
    (COMPLETIONS, {"prompt": TOO_LONG}),
    (COMPLETIONS, {"prompt": [300] * 3000}),
    (COMPLETIONS, {"prompt": [300] * 2048}),
    (RESPONSES, {"input": TOO_LONG}),
    (RESPONSES, {"previous_response_id": "resp_0"}),
    (ANTHROPIC, {"messages": [{"role": "user", "content": TOO_LONG}]}),
]
TRIES = 5
"""On a busy machine the real one may put all tokens into its last event."""
SINGLE = ["/health", "/version", "/v1/models", "/load", "/nothing"]


@dataclass(frozen=True)
class Pair:
    real: httpx.AsyncClient
    fake: httpx.AsyncClient

    async def both(self, method: str, path: str, **request: Any) -> tuple[httpx.Response, httpx.Response]:
        return await self.real.request(method, path, **request), await self.fake.request(method, path, **request)


@pytest.fixture
async def pair(random_vllm) -> AsyncIterator[Pair]:
    async with (
        FakeVllm(FakeSettings(model=MODEL)) as fake,
        httpx.AsyncClient(base_url=random_vllm.url, timeout=600) as real_client,
        httpx.AsyncClient(base_url=fake.url) as fake_client,
    ):
        yield Pair(real_client, fake_client)


def body(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in fields.items() if not key.startswith("max_") or key in PROMPTS[path]}
    whole = {"model": MODEL, "temperature": 0, **PROMPTS[path], **known}
    return {key: value for key, value in whole.items() if value is not None}


def shape(value: Any, key: str = "") -> Any:
    """What two answers to one request have in common; keys in their order."""
    if isinstance(value, dict):
        return [(name, shape(child, name)) for name, child in value.items()]
    if isinstance(value, list):
        return [kind for kind, _ in groupby(shape(child) for child in value)]
    if isinstance(value, str):
        return value if key in LITERAL else "string"
    if value is None or isinstance(value, bool) or key == "code":
        return value
    return "number"


def event_shape(event: str) -> Any:
    *names, data = event.split("\n")
    payload = data.removeprefix("data: ")
    if payload == "[DONE]":
        return payload
    return names, payload.startswith('{"error": '), shape(json.loads(payload))


def event_shapes(text: str) -> list[Any]:
    """Shapes of a stream's events, choice by choice: one may be ahead of another, or wait for a token's text."""
    assert text.endswith("\n\n")
    events = sorted(text.removesuffix("\n\n").split("\n\n"), key=choice_of)
    return [kind for kind, _ in groupby(map(event_shape, events))]


def choice_of(event: str) -> float:
    """Which choice an event belongs to; what belongs to all of them comes last."""
    if not event.startswith("data: {"):
        return math.inf
    choices = json.loads(event.removeprefix("data: ")).get("choices")
    return choices[0]["index"] if choices else math.inf


@pytest.mark.parametrize(("path", "fields"), GENERATIONS)
async def test_whole_answers_have_one_shape(pair, path, fields):
    plain = {key: value for key, value in fields.items() if key != "stream_options"}
    real, fake = await pair.both("POST", path, json=body(path, plain))
    assert real.status_code == 200, real.text
    assert headers(fake) == headers(real)
    assert shape(fake.json()) == shape(real.json())


@pytest.mark.parametrize(("path", "fields"), GENERATIONS)
async def test_streams_have_one_shape(pair, path, fields):
    for _ in range(TRIES):
        real, fake = await pair.both("POST", path, json=body(path, {**fields, "stream": True}))
        assert real.status_code == 200, real.text
        assert headers(fake) == headers(real)
        if event_shapes(fake.text) == event_shapes(real.text):
            break
    assert event_shapes(fake.text) == event_shapes(real.text)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_that_ends_by_itself_has_one_shape(random_vllm, path, streamed):
    async with FakeVllm(FakeSettings(model=MODEL, output_tokens=1)) as fake:
        async with httpx.AsyncClient(base_url=random_vllm.url) as real_client:
            eos = await end_of_sequence(real_client)
            asked = body(path, {"stream": streamed, "logit_bias": {str(eos): 100}})
            real = await real_client.post(path, json=asked, timeout=600)
        async with httpx.AsyncClient(base_url=fake.url) as fake_client:
            answer = await fake_client.post(path, json=asked)
    if streamed:
        assert stop_events(answer.text) == stop_events(real.text)
    else:
        assert shape(answer.json()) == shape(real.json())


async def end_of_sequence(client: httpx.AsyncClient) -> int:
    """The token that ends an answer: whatever stops one that is asked to stop at every token but ends anyway."""
    root = (await client.get("/v1/models")).json()["data"][0]["root"]
    with open(os.path.join(root, "config.json")) as file:  # noqa: ASYNC230, PTH118, PTH123
        return int(json.load(file)["eos_token_id"])


def stop_events(text: str) -> list[Any]:
    """vLLM leaves the content out of the last delta or gives it empty."""
    return event_shapes(text.replace('"delta":{"content":""}', '"delta":{}'))


@pytest.mark.parametrize(("path", "fields"), REFUSALS)
async def test_refusals_are_the_same(pair, path, fields):
    real, fake = await pair.both("POST", path, json=body(path, fields))
    assert real.status_code >= 400
    assert headers(fake) == headers(real)
    assert fake.json() == real.json()


async def test_a_body_that_is_not_json_is_refused_alike(pair):
    real, fake = await pair.both("POST", CHAT, content=b'{"model": ', headers={"content-type": "application/json"})
    assert (fake.status_code, fake.json()["error"]["type"]) == (real.status_code, real.json()["error"]["type"])


@pytest.mark.parametrize("path", SINGLE)
async def test_what_a_server_says_of_itself_has_one_shape(pair, path):
    real, fake = await pair.both("GET", path)
    assert headers(fake) == headers(real)
    if real.content:
        assert shape(fake.json()) == shape(real.json())


async def test_a_wrong_method_is_refused_alike(pair):
    real, fake = await pair.both("GET", CHAT)
    assert (fake.status_code, fake.json()) == (real.status_code, real.json())


async def test_counts_have_one_shape(pair):
    for path, asked in (
        ("/tokenize", {"model": MODEL, "prompt": "alpha beta"}),
        ("/tokenize", {"model": MODEL, "messages": MESSAGES}),
        ("/tokenize", {"model": "other", "prompt": "alpha beta"}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": MESSAGES}),
        ("/detokenize", {"model": MODEL, "tokens": [300, 301]}),
    ):
        real, fake = await pair.both("POST", path, json=asked)
        assert headers(fake) == headers(real)
        assert shape(fake.json()) == shape(real.json())


async def test_metrics_of_the_fake_are_among_those_of_the_real(pair):
    await pair.real.post(COMPLETIONS, json=body(COMPLETIONS, {}))
    real, fake = await pair.both("GET", "/metrics")
    assert headers(fake) == headers(real)
    known, faked = families(real.text), families(fake.text)
    for name, labels in faked.items():
        assert name in known
        assert labels <= known[name] if name == "vllm:cache_config_info" else labels == known[name]


def families(page: str) -> dict[str, set[str]]:
    """Names of metrics with the names of their labels."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line.startswith("vllm:"):
            name, _, rest = line.partition("{")
            labels = {part.split('="')[0].lstrip('",') for part in rest.rpartition("}")[0].split('",')}
            found.setdefault(name, set()).update(labels)
    return found


def headers(response: httpx.Response) -> tuple[int, list[str], str | None]:
    """Status, names of headers in their order, content type."""
    names = [name.decode().lower() for name, _ in response.headers.raw]
    return response.status_code, names, response.headers.get("content-type")


@pytest.fixture(scope="module")
def mortal_vllm(vllm) -> Iterator[Any]:
    """A server of its own: it takes one request at a time, and in the end its engine is killed."""
    # With a path of its own it is not forked, so that its processes have their names.
    server = vllm(args={"--max-num-seqs": "1", "--max-num-queued-reqs": "1"}, env={"PYTHONPATH": str(QUICK_START)})
    yield server
    server.stop()


async def test_busy_and_dead_look_the_same(mortal_vllm):
    for path in PROMPTS:
        await check_busy(mortal_vllm.url, path, streamed=False)
    for path in (CHAT, COMPLETIONS):
        await check_busy(mortal_vllm.url, path, streamed=True)
    await check_death(mortal_vllm)


async def check_busy(url: str, path: str, *, streamed: bool) -> None:
    """A burst at a server that takes one: whatever it refuses, it refuses as the fake does."""
    asked = body(path, {"stream": streamed, "max_tokens": 200, "max_output_tokens": 200, "ignore_eos": True})
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        burst = await asyncio.gather(*(client.post(path, json=asked) for _ in range(6)))
    kinds = [Fault(FaultKind.STATUS), Fault(FaultKind.BUSY_IN_STREAM)]
    expected = [await ask_fake(fault, path, asked) for fault in kinds]
    refused = [(answer.status_code, answer.text) for answer in burst if "busy" in answer.text]
    assert refused
    assert set(refused) <= {(answer.status_code, answer.text) for answer in expected}


async def ask_fake(fault: Fault, path: str, asked: dict[str, Any]) -> httpx.Response:
    settings = FakeSettings(model=MODEL)
    async with FakeVllm(settings, faults=[fault]) as fake, httpx.AsyncClient(base_url=fake.url) as client:
        return await client.post(path, json=asked)


async def check_death(server: Any) -> None:
    asked = body(CHAT, {"stream": True, "max_tokens": 1500, "ignore_eos": True})
    expected = (await ask_fake(Fault(FaultKind.ENGINE_DEATH, after=1), CHAT, asked)).text
    core = engine_core(server.process.pid)
    client = httpx.AsyncClient(base_url=server.url, timeout=600)
    async with client, client.stream("POST", CHAT, json=asked) as response:
        events = response.aiter_text()
        text = await anext(events)
        os.kill(core, signal.SIGKILL)
        text += "".join([part async for part in events])
    assert text.split("\n\n")[-3:] == expected.split("\n\n")[-3:]


def engine_core(group: int) -> int:
    """The process of vLLM's engine, in the process group of its API server."""
    listing = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True)
    found = (line.split(None, 2) for line in listing.stdout.splitlines() if "EngineCore" in line)
    return next(int(pid) for pid, its_group, _ in found if int(its_group) == group)
