"""The contract of a real vLLM, as `test_engine_kinds.py` has it of other engines: of 0.32, and of any that is named.

    KVGATE_ENGINE_PYTHON=/path/to/python python -m pytest tests/integration/test_vllm_contract.py

What differs between versions is asked of the engine here, too: nothing in this file knows one.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import Vllm
from tests.integration.relaying import CHAT, COMPLETIONS, Running, gateway, until

pytestmark = pytest.mark.engine

HI = {"role": "user", "content": "Hello there, how are you?"}
ONE_TOKEN = {"allowed_token_ids": [5], "stop_token_ids": [5]}
"""Ends an answer with its first token, whatever its limit."""


@pytest.fixture
async def through(chat_vllm: Vllm) -> AsyncIterator[Running]:
    async with gateway(
        models=[{"endpoints": [{"url": chat_vllm.url}]}], health={"interval": 0.5, "hung_after": 600}
    ) as running:
        yield running


@pytest.fixture
async def direct(chat_vllm: Vllm) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=chat_vllm.url, timeout=60, trust_env=False) as client:
        yield client


async def the_endpoint(running: Running) -> dict[str, Any]:
    (endpoint,) = (await running.state())["endpoints"]
    return dict(endpoint)


async def test_it_is_recognised_with_its_length_and_its_cache(through: Running, direct: httpx.AsyncClient) -> None:
    told = (await direct.get("/v1/models")).json()["data"][0]
    version = (await direct.get("/version")).json()["version"]
    endpoint = await the_endpoint(through)
    assert (endpoint["kind"], endpoint["version"], endpoint["max_model_len"]) == (
        "vllm",
        version,
        told["max_model_len"],
    )
    assert endpoint["kv"]["blocks"] == 79, "one of the 80 is the null block"
    assert endpoint["missing_metrics"] == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [HI]}),
        (
            CHAT,
            {"messages": [{"role": "system", "content": "Be brief."}, HI, {"role": "assistant", "content": "I"}, HI]},
        ),
        (CHAT, {"messages": [{"role": "user", "content": "Straße 漢字 🙂 <|im_start|>"}]}),
        (COMPLETIONS, {"prompt": "One two three"}),
        (COMPLETIONS, {"prompt": "Straße <|im_start|> 漢字"}),
        (COMPLETIONS, {"prompt": [1, 2, 3, 4]}),
    ],
)
async def test_a_prompt_is_counted_as_it_is_used(
    through: Running, chat_vllm: Vllm, path: str, fields: dict[str, Any]
) -> None:
    answer = await through.client.post(path, json=fields | {"model": chat_vllm.model, "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-kvgate-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


async def test_a_limit_over_its_length_is_refused_only_if_it_refuses_that(
    through: Running, direct: httpx.AsyncClient, chat_vllm: Vllm
) -> None:
    asked = {"model": chat_vllm.model, "prompt": "One two three", "max_tokens": 1024} | ONE_TOKEN
    itself = await direct.post(COMPLETIONS, json=asked)
    (endpoint,) = through.application._directory.endpoints.values()
    await until(lambda: endpoint.clamps is not None)
    answer = await through.client.post(COMPLETIONS, json=asked)
    assert itself.status_code in (200, 400)
    assert (endpoint.clamps, answer.status_code) == (itself.status_code == 200, itself.status_code)
    if answer.status_code == 400:
        assert answer.headers["x-kvgate-reason"] == "context_length_exceeded", "kvgate says so, before the engine does"


async def test_a_prompt_over_its_length_never_reaches_it(through: Running, chat_vllm: Vllm) -> None:
    asked = {"model": chat_vllm.model, "messages": [HI | {"content": "word " * 1100}], "max_tokens": 1}
    answer = await through.client.post(CHAT, json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_passes_through(through: Running, chat_vllm: Vllm, *, stream: bool) -> None:
    asked = {"model": chat_vllm.model, "messages": [HI], "max_tokens": 5, "stream": stream}
    answer = await through.client.post(CHAT, json=asked)
    assert answer.status_code == 200
    assert not stream or answer.text.rstrip().endswith("data: [DONE]")
