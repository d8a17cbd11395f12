"""Flags of vLLM that may change a prompt or what is said of it, as docs/engine-flags.md lists them: real servers."""

import ast
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.tokens.count import Source
from gateway.tokens.counter import ModelCounter
from gateway.tokens.engine_count import EngineCounter, Target
from gateway.tokens.engine_work import engine_work
from gateway.tokens.features import Feature
from gateway.tokens.loading import Tokenizers
from gateway.tokens.pool import CountingPool
from gateway.tokens.render import TokenizerSource
from gateway.wire.request import Api, parse
from gateway.wire.stream import StreamReader, read_body
from gateway.wire.usage import Usage
from tests.fakes.tokenizer import make_tokenizer
from tests.integration.counting import target_at
from tests.integration.parity.model import small_model
from tests.integration.test_token_parity import ROUTES

pytestmark = pytest.mark.engine

MODEL = "flags"
PAGE = Path(__file__).parents[2] / "docs" / "engine-flags.md"
BASE = {"--load-format": "dummy", "--enable-auto-tool-choice": None, "--tool-call-parser": "hermes"}
HARMLESS = {
    "--enable-prompt-tokens-details": None,
    "--enable-prompt-embeds": None,
    "--enable-force-include-usage": None,
    "--enable-per-request-metrics": None,
    "--enable-tokenizer-info-endpoint": None,
    "--anthropic-disabled-thinking-effort": "low",
    "--fingerprint-mode": "none",
    "--hf-overrides": '{"rope_theta": 5000.0}',
    "--limit-mm-per-prompt": '{"image": 1}',
    "--max-logprobs": "7",
    "--override-generation-config": '{"max_new_tokens": 7, "temperature": 0.0}',
    "--reasoning-parser": "qwen3",
    "--response-role": "bot",
    "--return-tokens-as-token-ids": None,
    "--renderer-num-workers": "2",
    "--stream-interval": "2",
    "--tool-strict-level": "function",
    "--trust-request-chat-template": None,
    "--trust-request-mm-kwargs": None,
}
"""Those that change no prompt, or only what the engine counts itself. All on one server: were one of them to change
one, the server would differ in its probes."""
MODE = {"--tokenizer-mode": "deepseek_v32"}
EXCLUDES = {"--exclude-tools-when-tool-choice-none": None}

PARTS = """{%- for message in messages -%}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{{ part.text }}{% if not loop.last %} and {% endif %}{% endfor %}{% endif -%}
{%- endfor -%}
{%- if tools %}{{ tools | tojson }}{{ depth }}{% endif %}"""
"""Prints a variable beside tools only, and a single part as a string: so each flag shows by itself."""
NOTICED = {
    "--default-chat-template-kwargs": '{"depth": "as deep as can be"}',
    "--chat-template-content-format": "string",
}


@pytest.fixture(scope="module")
def folder(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(demo_model, tmp_path_factory.mktemp("flags-model"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "parts.jinja"
    file.write_text(PARTS)
    return file


@pytest.fixture(scope="module")
def harmless(vllm: Any, folder: Path) -> Iterator[str]:
    """URL of an engine with all the flags that change no prompt, and the one that excludes tools."""
    server = vllm(model=folder, served_name=MODEL, args=BASE | HARMLESS | EXCLUDES)
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def noticed(vllm: Any, folder: Path, template: Path) -> Iterator[str]:
    """URL of an engine with a template of its own and defaults for it."""
    server = vllm(model=folder, served_name=MODEL, args=BASE | NOTICED | {"--chat-template": str(template)})
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def other_mode(vllm: Any, folder: Path) -> Iterator[str]:
    """URL of an engine that builds conversations by code of its own, whatever the template."""
    server = vllm(model=folder, served_name=MODEL, args={"--load-format": "dummy"} | MODE)
    yield server.url
    server.stop()


@asynccontextmanager
async def counter_of(url: str, source: TokenizerSource) -> AsyncIterator[tuple[ModelCounter, Target]]:
    """A counter that was compared with an engine."""
    pool = CountingPool(threads=1, processes=0, process_bytes=1, max_pending_bytes=10**8)
    async with target_at(url) as target:
        counter = ModelCounter(
            *(MODEL, source, pool, Tokenizers(pool), EngineCounter(lambda: (target,), lambda: 60)),
            up=lambda: (target.url,),
            on_drift=pytest.fail,
            on_switch=lambda _: None,
            on_return=pytest.fail,
            on_refusal=pytest.fail,
            clock=time.monotonic,
        )
        await counter.start()
        await counter.verify(target)
        try:
            yield counter, target
        finally:
            await pool.close()


TEXT = "one two three four five six seven eight nine ten " * 12
USER = [{"role": "user", "content": TEXT}]
PLAIN: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"messages": USER, "max_tokens": 2},
    Api.COMPLETIONS: {"prompt": TEXT, "max_tokens": 2},
    Api.RESPONSES: {"input": TEXT, "max_output_tokens": 2},
    Api.MESSAGES: {"messages": USER, "max_tokens": 2},
}


async def used(url: str, api: Api, fields: Mapping[str, Any], *, stream: bool = False) -> tuple[Usage, bytes]:
    """What an engine says that it used for a request, as we read it, and its whole answer."""
    asked = {"model": MODEL, **fields, "stream": stream}
    if stream and api in (Api.CHAT, Api.COMPLETIONS):
        asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(url + ROUTES[api], json=asked)
    assert answer.status_code == httpx.codes.OK, answer.text
    if stream:
        reader = StreamReader(api, strip_usage=False)
        reader.feed(answer.content)
        usage = reader.usage
    else:
        usage = read_body(api, answer.content).usage
    assert usage is not None
    return usage, answer.content


@pytest.mark.parametrize("details", [True, False], ids=["details", "plain"])
@pytest.mark.parametrize("api", PLAIN)
async def test_usage_is_read_right_cold_and_cached_streamed_and_whole(
    request: pytest.FixtureRequest, api: Api, *, details: bool
) -> None:
    url = request.getfixturevalue("harmless" if details else "noticed")
    async with target_at(url) as target:
        for stream in (False, True):
            # One prompt for each case: what another sent is cached.
            begins = f"{'streamed' if stream else 'whole'} {api} "
            fields = json.loads(json.dumps(PLAIN[api]).replace("one two", begins + "one two", 1))
            work = engine_work(api, json.dumps({"model": MODEL} | fields).encode(), 10**6)
            (expected,) = await EngineCounter(lambda: (target,), lambda: 60).count_at(target, work, flow="flow")
            cold, _ = await used(target.url, api, fields, stream=stream)
            cached, said = await used(target.url, api, fields, stream=stream)
            assert [replace(usage, cached_tokens=None) for usage in (cold, cached)] == [Usage(expected, 2)] * 2
            of_cache = b'"cache_read_input_tokens":' if api is Api.MESSAGES else b'"cached_tokens":'
            told = re.findall(of_cache + rb" ?(\d+)", said)
            assert cached.cached_tokens == (int(told[-1]) if told else None)
            if details:
                assert int(told[-1]) >= 32, "nothing was cached: this proves nothing"
            elif api is not Api.RESPONSES:  # which tells always
                assert not told


TOOL = {"name": "weather", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
UNUSED: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "none"},
    Api.RESPONSES: {"tools": [{"type": "function"} | TOOL], "tool_choice": "none"},
    Api.MESSAGES: {
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
    },
}


async def settled(counter: ModelCounter, target: Target, api: Api, fields: Mapping[str, Any]) -> Source:
    """Who counted a request that the engine then served; fails where its usage says otherwise."""
    body = json.dumps({"model": MODEL, **fields}).encode()
    count = await counter.count(parse(api, body), flow="test", max_model_len=2048)
    usage, _ = await used(target.url, api, fields)
    assert sum(count.prompts) == usage.prompt_tokens
    return count.source


async def test_an_engine_with_every_flag_that_changes_no_prompt_is_counted_here(harmless: str, folder: Path) -> None:
    async with counter_of(harmless, TokenizerSource(str(folder))) as (counter, target):
        assert counter.not_here() == []
        for api, fields in PLAIN.items():
            assert await settled(counter, target, api, fields) is Source.LOCAL


async def test_tools_that_the_engine_leaves_out_are_not_counted(harmless: str, folder: Path) -> None:
    async with counter_of(harmless, TokenizerSource(str(folder))) as (counter, target):
        for api, unused in UNUSED.items():
            assert await settled(counter, target, api, PLAIN[api] | unused) is Source.LOCAL


async def test_a_limit_of_output_that_the_engine_has_by_default_changes_no_count(harmless: str) -> None:
    usage, _ = await used(harmless, Api.CHAT, {"messages": USER})
    assert usage.completion_tokens <= 7


async def test_what_only_the_engine_knows_it_counts(harmless: str, folder: Path) -> None:
    brought = {"chat_template_kwargs": {"chat_template": "{{ messages[0].content }} and no more"}}
    async with counter_of(harmless, TokenizerSource(str(folder))) as (counter, target):
        for api, more in ((Api.CHAT, brought), (Api.MESSAGES, {"thinking": {"type": "disabled"}})):
            assert await settled(counter, target, api, PLAIN[api] | more) is Source.ENGINE


async def test_defaults_for_a_template_and_the_shape_of_content_are_noticed_each_by_itself(
    noticed: str, folder: Path
) -> None:
    async with counter_of(noticed, TokenizerSource(str(folder), chat_template=PARTS)) as (counter, target):
        found = {(kind.api, kind.feature) for kind in counter.not_here()}
        assert {(Api.CHAT, Feature.TOOLS), (Api.CHAT, Feature.PARTS)} <= found
        assert (Api.CHAT, Feature.PROMPT) not in found
        assert await settled(counter, target, Api.CHAT, PLAIN[Api.CHAT]) is Source.LOCAL
        parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
        for more in ({"messages": parts}, {"tools": UNUSED[Api.CHAT]["tools"]}):
            assert await settled(counter, target, Api.CHAT, PLAIN[Api.CHAT] | more) is Source.ENGINE


async def test_a_template_that_kvgate_was_not_told_of_is_noticed(noticed: str, folder: Path) -> None:
    async with counter_of(noticed, TokenizerSource(str(folder))) as (counter, target):
        assert "--chat-template" in counter.reason
        assert await settled(counter, target, Api.CHAT, PLAIN[Api.CHAT]) is Source.ENGINE
        assert await settled(counter, target, Api.COMPLETIONS, PLAIN[Api.COMPLETIONS]) is Source.LOCAL


async def test_another_tokenizer_is_noticed_everywhere(harmless: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    async with counter_of(harmless, TokenizerSource(str(other))) as (counter, target):
        assert {kind.api for kind in counter.not_here() if kind.feature is Feature.PROMPT} == set(Api)
        assert "--tokenizer" in counter.reason
        for api in (Api.CHAT, Api.COMPLETIONS, Api.MESSAGES):
            assert await settled(counter, target, api, PLAIN[api]) is Source.ENGINE


async def test_a_tokenizer_mode_that_needs_no_template_is_noticed(other_mode: str, folder: Path) -> None:
    async with counter_of(other_mode, TokenizerSource(str(folder))) as (counter, target):
        assert (Api.CHAT, Feature.PROMPT) in {(kind.api, kind.feature) for kind in counter.not_here()}
        assert await settled(counter, target, Api.CHAT, PLAIN[Api.CHAT]) is Source.ENGINE
        assert await settled(counter, target, Api.COMPLETIONS, PLAIN[Api.COMPLETIONS]) is Source.LOCAL


def test_the_page_tells_of_every_flag_of_vllms_front_end(engine_python: Path) -> None:
    (source,) = engine_python.parents[1].glob("lib/python3*/site-packages/vllm/entrypoints/launchers/cli_args.py")
    classes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)]
    fields = [node.target for of in classes for node in of.body if isinstance(node, ast.AnnAssign)]
    flags = {"--" + field.id.replace("_", "-") for field in fields if isinstance(field, ast.Name)}
    assert len(flags) > 50
    told = set(re.findall(r"`(--[a-z0-9-]+)", PAGE.read_text()))
    assert flags - told == set()
    started = {flag for flags in (HARMLESS, EXCLUDES, NOTICED, MODE) for flag in flags}
    assert started - told == set()
