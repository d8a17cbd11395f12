import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.tokens.count import (
    CountingOverloadedError,
    CountUnavailableError,
    PromptCount,
    PromptTooLongError,
    Source,
)
from gateway.tokens.counter import AT_ONCE_BYTES, FIRST_AGAIN, ModelCounter
from gateway.tokens.drift import FIRST_WAIT, LIMIT, WINDOW, Drift
from gateway.tokens.engine_count import EngineCounter, Target
from gateway.tokens.features import Feature
from gateway.tokens.loading import Tokenizers
from gateway.tokens.local_count import count_body
from gateway.tokens.pool import CountingPool
from gateway.tokens.render import _LOADED, TokenizerSource
from gateway.wire.engine_kinds import LLAMA_SERVER, OLLAMA, SGLANG, EngineKind
from gateway.wire.request import Api, InvalidRequestError, parse
from gateway.wire.token_ids import IdsField
from tests.unit.tokens.wire import engine_at

USER = {"role": "user", "content": "the fox"}
FAR = 10**6


class Engine:
    """Counts as vLLM's routes do, with a tokenizer of its own, and remembers what it was asked."""

    def __init__(self, source: TokenizerSource) -> None:
        self.source = source
        self.up = True
        self.asked: list[str] = []
        self.target = engine_at("http://engine", self.answer)
        self.counts_messages = True
        self.more_for: dict[str, int] = {}
        self.excludes_unused = False
        self.parses_tools = True
        self.takes_ids: IdsField | None = None
        self.shifted = 0
        """How far its token ids are from ours: another vocabulary, with which every text has as many tokens."""
        self.lists_ids = True
        self.listed = True

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if not self.up:
            raise httpx.ConnectError("refused", request=request)
        fields = {name: value for name, value in json.loads(request.content).items() if value != []}
        if request.url.path == "/v1/chat/completions":
            return httpx.Response(200, json={"usage": {"prompt_tokens": self._prompt(fields)}})
        if request.url.path == "/v1/messages/count_tokens":
            if not self.counts_messages:
                return httpx.Response(404)
            if not self.parses_tools and fields.get("tools") and "tool_choice" not in fields:
                return httpx.Response(400, json={"error": {"message": "no tool parser"}})
            return httpx.Response(200, json={"input_tokens": self._count(Api.MESSAGES, fields)})
        api = Api.CHAT if "messages" in fields else Api.COMPLETIONS
        try:
            count = self._count(api, fields)
        except InvalidRequestError as error:
            return httpx.Response(400, json={"error": {"message": error.message, "param": error.param}})
        body = json.dumps(fields).encode()
        ours = count_body(self.source, api, body, FAR, ids_from=0).ids if self.lists_ids else b""
        ids = [token + self.shifted for token in json.loads(ours)] if ours else None
        return httpx.Response(200, json={"count": count, "tokens": ids})

    def _prompt(self, fields: dict[str, Any]) -> int:
        handed = {IdsField.OWN: fields, IdsField.TRANSFER: fields.get("kv_transfer_params", {})}
        taken = {} if self.takes_ids is None else handed[self.takes_ids]
        ids = taken.get("prompt_token_ids")
        return self._count(Api.CHAT, fields) if ids is None else len(ids)

    def _count(self, api: Api, fields: dict[str, Any]) -> int:
        more = sum(count for name, count in self.more_for.items() if fields.get(name))
        body = json.dumps(fields).encode()
        return count_body(self.source, api, body, FAR, excludes_unused=self.excludes_unused).prompts[0] + more


class Counter:
    """A counter, the engine it asks, and what it told of."""

    counter: ModelCounter

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.drifts: list[Drift] = []
        self.switches: list[str] = []
        self.returns: list[str] = []
        self.refusals: list[str] = []
        self.now = 0.0
        self.chance = 0.5
        self.hand_over_from: int | None = None

    async def drift(self, api: Api = Api.CHAT, **fields: Any) -> None:
        """As many counts as it takes turn out wrong."""
        for _ in range(LIMIT):
            count = await self.count(api, **fields)
            self.counter.settle(count, sum(count.prompts) + 1)

    async def count(self, api: Api = Api.CHAT, **fields: Any) -> PromptCount:
        given = {"max_tokens": 5} | ({"messages": [USER]} if api in (Api.CHAT, Api.MESSAGES) else {}) | fields
        request = parse(api, json.dumps(given).encode())
        return await self.counter.count(request, flow="flow", max_model_len=1000)


@pytest.fixture
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[CountingPool]:
    """A pool with as many processes as a test says; without that, with none."""
    processes = getattr(request, "param", 0)
    pool = CountingPool(threads=1, processes=processes, process_bytes=AT_ONCE_BYTES, max_pending_bytes=10**6)
    yield pool
    await pool.close()


@pytest.fixture
def made(pool: CountingPool, tokenizer_folder: Path) -> Any:
    async def make(source: TokenizerSource | None, engine: Engine | None = None) -> Counter:
        engine = engine or Engine(TokenizerSource(str(tokenizer_folder)))
        counted = Counter(engine)
        counted.counter = ModelCounter(
            "m",
            source,
            pool,
            Tokenizers(pool),
            EngineCounter(lambda: (engine.target,) if engine.listed else (), lambda: 5),
            up=lambda: (engine.target.url,) if engine.listed else (),
            on_drift=counted.drifts.append,
            on_switch=counted.switches.append,
            on_return=counted.returns.append,
            on_refusal=counted.refusals.append,
            clock=lambda: counted.now,
            chance=lambda: counted.chance,
            hand_over_from=lambda: counted.hand_over_from,
        )
        await counted.counter.start()
        return counted

    return make


@pytest.fixture
async def ours(made: Any, tokenizer_folder: Path) -> Counter:
    """A counter with the engine's own tokenizer, which was found equal."""
    counter = await made(TokenizerSource(str(tokenizer_folder)))
    await counter.counter.verify(counter.engine.target)
    counter.engine.asked.clear()
    return counter


async def test_the_parts_of_a_prompt_come_with_a_local_count_only(
    ours: Counter, made: Any, tokenizer_folder: Path
) -> None:
    long = "the quick brown fox " * 50
    counted = await ours.count(Api.COMPLETIONS, prompt=long)
    again = await ours.count(Api.COMPLETIONS, prompt=long + " jumps")
    assert counted.prefix
    assert counted.prefix == again.prefix[: len(counted.prefix)]
    assert (await ours.count(Api.COMPLETIONS, prompt=long, suffix="jumps")).prefix == ()
    assert (await (await made(None)).count(Api.COMPLETIONS, prompt=long)).prefix == ()
    restarted = await made(TokenizerSource(str(tokenizer_folder)))
    assert not set((await restarted.count(Api.COMPLETIONS, prompt=long)).prefix) & set(counted.prefix)


async def test_what_is_proven_equal_is_counted_here(ours: Counter) -> None:
    for api, fields in (
        (Api.CHAT, {}),
        (Api.COMPLETIONS, {"prompt": "the fox"}),
        (Api.MESSAGES, {}),
        (Api.RESPONSES, {"input": "the fox"}),
    ):
        count = await ours.count(api, **fields)
        assert count.source is Source.LOCAL
        assert count.kind.api is api
    assert ours.engine.asked == []
    assert ours.counter.mode is Source.LOCAL
    assert ours.counter.reason == ""
    assert ours.switches == []


async def test_a_request_beyond_us_is_counted_by_the_engine(ours: Counter) -> None:
    count = await ours.count(tools=[])
    assert count.source is Source.ENGINE
    assert ours.engine.asked == ["/tokenize"]


async def test_what_the_template_refuses_is_refused_without_the_engine(made: Any, tokenizer_folder: Path) -> None:
    refusing = TokenizerSource(str(tokenizer_folder), chat_template="{{ raise_exception('No.') }}")
    counter = await made(refusing)
    with pytest.raises(InvalidRequestError, match=r"No\."):
        await counter.count()


async def test_a_prompt_that_cannot_fit_is_refused(ours: Counter) -> None:
    with pytest.raises(PromptTooLongError):
        await ours.count(messages=[{"role": "user", "content": "x" * 100_000}])
    assert ours.engine.asked == []


async def test_an_engine_with_another_template_counts_for_itself_and_that_is_said(
    made: Any, tokenizer_folder: Path
) -> None:
    other = TokenizerSource(
        str(tokenizer_folder), chat_template="other {% for m in messages %}{{ m.content }}{% endfor %}"
    )
    counter = await made(other)
    assert (await counter.count()).source is Source.LOCAL
    report = await counter.counter.verify(counter.engine.target)
    assert not report.equal
    assert counter.counter.mode is Source.ENGINE
    assert counter.switches == [counter.counter.reason]
    assert "http://engine" in counter.counter.reason
    counter.engine.asked.clear()
    assert (await counter.count()).source is Source.ENGINE
    assert (await counter.count(Api.COMPLETIONS, prompt="the fox")).source is Source.LOCAL
    assert counter.engine.asked == ["/tokenize"]


async def test_an_engine_that_differs_in_one_feature_counts_requests_with_that_feature(
    made: Any, tokenizer_folder: Path
) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    engine.more_for = {"tools": 3}
    counter = await made(source, engine)
    report = await counter.counter.verify(counter.engine.target)
    assert Feature.PROMPT not in report.distrusted(Api.CHAT)
    assert counter.counter.mode is Source.LOCAL
    assert "tools" in counter.counter.reason
    assert (await counter.count()).source is Source.LOCAL
    assert (await counter.count(tools=[{"function": {"name": "f"}}])).source is Source.ENGINE


async def test_what_an_engine_refuses_is_left_to_it_and_no_alarm(made: Any, tokenizer_folder: Path) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    engine.parses_tools = False
    counter = await made(source, engine)
    assert not (await counter.counter.verify(engine.target)).differs
    assert counter.switches == []
    (exception,) = counter.counter.not_here()
    assert (exception.api, exception.feature) == (Api.MESSAGES, Feature.TOOLS)
    assert exception.reason == 'http://engine refuses the probes "messages with tools"'
    count = await counter.count(Api.MESSAGES, tools=[{"name": "f", "input_schema": {"type": "object"}}])
    assert count.source is Source.ESTIMATE  # it goes on to the engine, which refuses it in its own words


async def test_an_engine_that_comes_up_equal_again_is_trusted_again(ours: Counter) -> None:
    ours.engine.more_for = {"messages": 1}
    await ours.counter.verify(ours.engine.target)
    assert ours.counter.mode is Source.ENGINE
    ours.engine.more_for = {}
    await ours.counter.verify(ours.engine.target)
    assert ours.counter.mode is Source.LOCAL


@pytest.mark.parametrize("name", [None, "/nowhere/at/all"])
async def test_without_a_tokenizer_the_engine_counts(made: Any, name: str | None) -> None:
    counter = await made(None if name is None else TokenizerSource(name))
    assert len(counter.switches) == 1
    assert counter.counter.reason == counter.switches[0]
    assert await counter.counter.verify(counter.engine.target) is None
    assert (await counter.count()).source is Source.ENGINE
    assert (await counter.count(Api.MESSAGES)).source is Source.ENGINE
    assert (await counter.count(Api.COMPLETIONS, prompt="the fox")).source is Source.ENGINE
    assert (await counter.count(Api.RESPONSES, input="the fox")).source is Source.ENGINE


async def test_where_nobody_knows_how_prompts_are_built_what_may_show_in_them_makes_an_estimate(made: Any) -> None:
    counter = await made(None)
    schema = {"type": "json_object"}
    assert (await counter.count(response_format=schema)).source is Source.ESTIMATE
    assert (await counter.count(Api.RESPONSES, input="hi", text={"format": schema})).source is Source.ENGINE
    assert (await counter.count(Api.MESSAGES, output_config={"format": schema})).source is Source.ENGINE


async def test_where_the_template_is_known_a_schema_shows_in_no_prompt(ours: Counter) -> None:
    schema = {"type": "json_object"}
    assert (await ours.count(response_format=schema)).source is Source.LOCAL
    assert (await ours.count(tools=[], response_format=schema)).source is Source.ENGINE


async def test_what_the_counting_route_refuses_the_engine_is_to_refuse_in_its_own_words(made: Any) -> None:
    counter = await made(None)
    assert (await counter.count(messages="x")).source is Source.ESTIMATE


async def test_where_nobody_can_count_that_is_said(made: Any) -> None:
    counter = await made(None)
    counter.engine.up = False
    with pytest.raises(CountUnavailableError):
        await counter.count()


async def test_an_endpoint_that_does_not_answer_probes_proves_nothing_and_is_asked_again(
    made: Any, tokenizer_folder: Path
) -> None:
    ours = await made(TokenizerSource(str(tokenizer_folder)))

    async def asked_after(seconds: float) -> bool:
        ours.engine.asked.clear()
        ours.now += seconds
        await ours.counter.recheck()
        return bool(ours.engine.asked)

    ours.engine.up = False
    with pytest.raises(CountUnavailableError):
        await ours.counter.verify(ours.engine.target)
    assert ours.counter.mode is Source.LOCAL
    for wait in (FIRST_AGAIN, 2 * FIRST_AGAIN, 4 * FIRST_AGAIN):
        assert ours.counter.not_compared() == {"http://engine"}
        assert [await asked_after(wait - 1), await asked_after(1)] == [False, True]
    with pytest.raises(CountUnavailableError):
        await ours.counter.verify(ours.engine.target)
    ours.engine.up, ours.engine.more_for = True, {"messages": 1}
    assert await asked_after(FIRST_AGAIN), "it came up anew"
    assert ours.counter.mode is Source.ENGINE
    assert ours.counter.not_compared() == set()
    assert not await asked_after(FIRST_WAIT)


async def test_a_small_body_is_counted_at_once_and_a_larger_one_in_the_pool(ours: Counter, pool: CountingPool) -> None:
    pool.max_pending_bytes = 0
    pool._pending.add("another", 1)
    small = await ours.count(Api.COMPLETIONS, prompt="a" * (AT_ONCE_BYTES - 100))
    assert small.source is Source.LOCAL
    with pytest.raises(CountingOverloadedError):
        await ours.count(Api.COMPLETIONS, prompt="a" * AT_ONCE_BYTES)


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.CHAT, {"messages": [USER], "tools": [{"type": "function", "function": {"parameters": [1] * 201}}]}),
        (Api.CHAT, {"messages": [USER] * 40}),
        (Api.RESPONSES, {"input": "the fox"}),
        (Api.COMPLETIONS, {"prompt": ["fox"] * 250}),
        (Api.COMPLETIONS, {"prompt": [[1]] * 250}),
    ],
)
async def test_a_small_body_that_may_take_long_is_counted_in_the_pool(
    ours: Counter, pool: CountingPool, api: Api, fields: dict[str, Any]
) -> None:
    pool.max_pending_bytes = 0
    pool._pending.add("another", 1)
    given = json.dumps({"max_output_tokens" if api is Api.RESPONSES else "max_tokens": 5} | fields).encode()
    assert len(given) < AT_ONCE_BYTES
    with pytest.raises(CountingOverloadedError):
        await ours.counter.count(parse(api, given), flow="flow", max_model_len=1000)


REPEATED = "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
INDENTED = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson(indent=4) }}{% endfor %}"
    "{% endfor %}"
)
DEEP = r'{"a":' + "[" * 300 + "]" * 300 + "}"


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        (REPEATED, {"messages": [USER] * 20, "chat_template_kwargs": {"eos_token": "a" * 2000}}),
        (
            INDENTED,
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [
                            {"id": "a", "type": "function", "function": {"name": "f", "arguments": DEEP}},
                        ],
                    }
                ]
            },
        ),
    ],
    ids=["a token of the client's for each message", "brackets that are escaped"],
)
async def test_a_small_body_that_becomes_a_long_prompt_is_counted_in_the_pool(
    made: Any, pool: CountingPool, tokenizer_folder: Path, template: str, fields: dict[str, Any]
) -> None:
    source = TokenizerSource(str(tokenizer_folder), chat_template=template)
    counter = await made(source)
    body = json.dumps({"max_tokens": 5} | fields, separators=(",", ":")).encode()
    body = body.replace(b"[" * 300 + b"]" * 300, rb"\u005b" * 300 + rb"\u005d" * 300)
    assert len(body) < AT_ONCE_BYTES
    request = parse(Api.CHAT, body)
    count = await counter.counter.count(request, flow="flow", max_model_len=FAR)
    assert count.prompts == count_body(source, Api.CHAT, body, FAR).prompts
    pool.max_pending_bytes = 0
    pool._pending.add("another", 1)
    with pytest.raises(CountingOverloadedError):
        await counter.counter.count(request, flow="flow", max_model_len=FAR)


async def test_token_ids_in_a_small_body_are_counted_at_once(ours: Counter, pool: CountingPool) -> None:
    pool.max_pending_bytes = 0
    pool._pending.add("another", 1)
    assert (await ours.count(Api.COMPLETIONS, prompt=[100] * 700)).prompts == (700,)


async def test_the_repeated_fields_of_a_batch_make_it_larger(ours: Counter, pool: CountingPool) -> None:
    pool.max_pending_bytes = 0
    pool._pending.add("another", 1)
    conversations = [[{"role": "user", "content": "a"}]] * 20
    with pytest.raises(CountingOverloadedError):
        await ours.count(Api.BATCH, messages=conversations)


async def test_probes_that_nobody_has_room_to_count_prove_nothing(
    ours: Counter, pool: CountingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.tokens.counter.AT_ONCE_BYTES", 0)
    ours.engine.more_for = {"messages": 1}
    await ours.counter.verify(ours.engine.target)
    assert ours.counter.mode is Source.ENGINE
    pool.max_pending_bytes = 0
    pool._pending.add("another", 1)
    with pytest.raises(CountUnavailableError):
        await ours.counter.verify(ours.engine.target)
    assert ours.counter.mode is Source.ENGINE


async def test_a_stored_response_can_only_be_estimated(ours: Counter, made: Any) -> None:
    count = await ours.count(Api.RESPONSES, input="the fox", previous_response_id="resp_1")
    assert count.source is Source.ESTIMATE
    assert count.prompts[0] > 0
    without = await made(None)
    assert (await without.count(Api.RESPONSES, input="the fox", previous_response_id="r")).source is Source.ESTIMATE


async def test_an_engine_too_old_to_count_messages_leaves_us_an_estimate(made: Any, tokenizer_folder: Path) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    engine.counts_messages = False
    counter = await made(source, engine)
    await counter.counter.verify(counter.engine.target)
    estimate = await counter.count(Api.MESSAGES)
    assert estimate.source is Source.ESTIMATE
    assert estimate.prompts == (await counter.count()).prompts


async def test_drift_is_told_each_time_and_when_it_persists_the_engine_takes_over(ours: Counter) -> None:
    count = await ours.count()
    ours.counter.settle(count, sum(count.prompts))
    await ours.drift()
    assert [drift.first for drift in ours.drifts] == [True] + [False] * (LIMIT - 1)
    assert ours.drifts[0].reported == ours.drifts[0].counted + 1
    assert len(ours.switches) == 1
    assert (await ours.count()).source is Source.ENGINE
    await ours.counter.verify(ours.engine.target)
    assert ours.counter.mode is Source.ENGINE


async def test_one_odd_api_leaves_the_others_to_us_and_the_state_tells(ours: Counter) -> None:
    await ours.drift(Api.MESSAGES)
    assert (await ours.count(Api.MESSAGES)).source is Source.ENGINE
    assert (await ours.count()).source is Source.LOCAL
    assert ours.counter.mode is Source.LOCAL
    (exception,) = ours.counter.not_here()
    assert (exception.api, exception.feature, exception.source) == (Api.MESSAGES, Feature.PROMPT, Source.ENGINE)
    assert "messages" in exception.reason
    assert ours.switches == [exception.reason]


async def test_what_the_engine_counts_wrong_is_called_an_estimate_for_a_while(
    made: Any, tokenizer_folder: Path
) -> None:
    asked = await made(None, Engine(TokenizerSource(str(tokenizer_folder))))
    no_tokenizer = asked.switches.pop()
    count = await asked.count()
    asked.counter.settle(count, count.tokens)
    assert (count.source, asked.counter.mode) == (Source.ENGINE, Source.ENGINE)
    await asked.drift()
    assert len(asked.drifts) == LIMIT
    (switch,) = asked.switches
    assert "the engine's own counts of chat differ" in switch
    estimate = await asked.count()
    assert (estimate.source, estimate.prompts) == (Source.ESTIMATE, count.prompts)
    asked.counter.settle(estimate, estimate.tokens + 1)
    assert len(asked.drifts) == LIMIT, "an estimate is not held to its number"
    assert asked.counter.mode is Source.ESTIMATE
    assert {(kind.api, kind.source) for kind in asked.counter.not_here()} == {
        (api, Source.ESTIMATE if api is Api.CHAT else Source.ENGINE) for api in Api
    }
    assert (await asked.count(Api.MESSAGES)).source is Source.ENGINE
    for wait in (FIRST_WAIT, 2 * FIRST_WAIT):
        asked.now += wait - 1
        await asked.counter.recheck()
        assert (await asked.count()).source is Source.ESTIMATE
        asked.now += 1
        await asked.counter.recheck()
        assert (await asked.count()).source is Source.ENGINE
        await asked.drift()
    assert asked.counter.reason == no_tokenizer


async def test_wrong_counts_of_the_engine_do_not_speak_against_ours(ours: Counter) -> None:
    left_to_it = {"chat_template_kwargs": {"max_length": 5}}
    ours.engine.target = engine_at("http://engine", lambda _: httpx.Response(200, json={"count": 7}))
    assert (await ours.count(**left_to_it)).source is Source.ENGINE
    await ours.drift(**left_to_it)
    assert (await ours.count(**left_to_it)).source is Source.ESTIMATE
    assert (await ours.count()).source is Source.LOCAL


async def test_drift_ends_where_the_probes_are_counted_alike_again(ours: Counter) -> None:
    await ours.drift()
    ours.engine.asked.clear()
    ours.now = FIRST_WAIT - 1
    await ours.counter.recheck()
    assert ours.engine.asked == []
    ours.now = FIRST_WAIT
    await ours.counter.recheck()
    assert ours.engine.asked
    assert ours.returns == ["chat"]
    assert (await ours.count()).source is Source.LOCAL
    assert ours.counter.not_here() == []


async def test_drift_stays_where_the_probes_differ_or_nobody_answers_them(ours: Counter) -> None:
    await ours.drift()
    ours.engine.more_for = {"messages": 1}
    ours.now = FIRST_WAIT
    await ours.counter.recheck()
    ours.engine.more_for = {}
    ours.engine.up = False
    ours.now += 2 * FIRST_WAIT
    await ours.counter.recheck()
    assert ours.returns == []
    ours.engine.up = True
    assert (await ours.count()).source is Source.ENGINE
    ours.now += 4 * FIRST_WAIT
    await ours.counter.recheck()
    assert ours.returns == ["chat"]
    assert (await ours.count()).source is Source.LOCAL


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("excludes", [False, True])
async def test_tools_that_may_not_be_used_are_counted_as_the_engine_has_them(
    made: Any, tokenizer_folder: Path, *, excludes: bool
) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    engine.excludes_unused = excludes
    counter = await made(source, engine)
    report = await counter.counter.verify(engine.target)
    assert report.equal
    messages_tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    responses_tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    for api, tools, choice, fields in (
        (Api.CHAT, TOOLS, "none", {}),
        (Api.MESSAGES, messages_tools, {"type": "none"}, {}),
        (Api.RESPONSES, responses_tools, "none", {"input": "the fox"}),
    ):
        without = await counter.count(api, **fields)
        unused = await counter.count(api, tools=tools, tool_choice=choice, **fields)
        used = await counter.count(api, tools=tools, **fields)
        assert {count.source for count in (without, unused, used)} == {Source.LOCAL}
        assert unused.prompts == (without.prompts if excludes else used.prompts)
        assert used.prompts > without.prompts


@pytest.fixture
async def handing(made: Any, tokenizer_folder: Path) -> Counter:
    """A counter whose endpoint takes token ids, of prompts from one token on."""
    engine = Engine(TokenizerSource(str(tokenizer_folder)))
    engine.takes_ids = IdsField.TRANSFER
    counter: Counter = await made(engine.source, engine)
    counter.hand_over_from = 1
    await counter.counter.verify(engine.target)
    return counter


async def test_the_ids_of_a_prompt_are_those_that_were_counted(handing: Counter) -> None:
    count = await handing.count()
    assert len(json.loads(count.ids)) == count.tokens
    assert handing.counter.ids_field("http://engine") is IdsField.TRANSFER
    assert "ids" not in repr(count)


async def test_no_ids_are_made_while_no_endpoint_that_takes_them_is_there(handing: Counter) -> None:
    handing.engine.listed = False
    assert (await handing.count()).ids == b""
    handing.engine.listed = True
    assert (await handing.count()).ids != b""


async def test_an_engine_that_ignores_the_fields_gets_no_ids(made: Any, tokenizer_folder: Path) -> None:
    counter: Counter = await made(TokenizerSource(str(tokenizer_folder)))
    counter.hand_over_from = 1
    await counter.counter.verify(counter.engine.target)
    assert counter.engine.asked.count("/v1/chat/completions") == len(IdsField)
    assert (await counter.count()).ids == b""
    assert counter.counter.ids_field("http://engine") is None


async def test_an_engine_that_makes_other_tokens_of_a_prompt_gets_no_ids_though_it_makes_as_many(
    handing: Counter,
) -> None:
    """Another checkpoint may have another system prompt of the same length, or one more special token in front."""
    handing.engine.shifted = 1
    handing.engine.asked.clear()
    report = await handing.counter.verify(handing.engine.target)
    assert report is not None
    assert report.equal
    assert handing.counter.ids_field("http://engine") is None
    assert "/v1/chat/completions" not in handing.engine.asked
    count = await handing.count()
    assert (count.source, count.ids) == (Source.LOCAL, b"")
    (refusal,) = handing.refusals
    assert 'http://engine makes other tokens of the probes "user", "system", ' in refusal
    handing.engine.shifted = 0
    await handing.counter.verify(handing.engine.target)
    assert (await handing.count()).ids != b""


async def test_an_engine_that_lists_no_ids_gets_none(handing: Counter) -> None:
    handing.engine.lists_ids = False
    report = await handing.counter.verify(handing.engine.target)
    assert report is not None
    assert (report.same_ids, report.other_ids) == (0, ())
    assert handing.counter.ids_field("http://engine") is None
    assert handing.refusals == []


async def test_nothing_is_probed_where_no_ids_are_wanted(ours: Counter) -> None:
    await ours.counter.verify(ours.engine.target)
    assert "/v1/chat/completions" not in ours.engine.asked


async def test_only_conversations_from_the_set_length_on_bring_ids(handing: Counter) -> None:
    long = await handing.count()
    handing.hand_over_from = long.tokens + 1
    assert (await handing.count()).ids == b""
    handing.hand_over_from = long.tokens
    assert (await handing.count()).ids != b""
    handing.hand_over_from = None
    assert (await handing.count()).ids == b""
    handing.hand_over_from = 1
    assert (await handing.count(Api.COMPLETIONS, prompt="the fox")).ids == b""
    assert (await handing.count(Api.MESSAGES)).ids == b""
    assert (await handing.count(kv_transfer_params=None)).ids == b""
    assert (await handing.count(return_prompt_text=False)).ids != b""
    assert (await handing.count(return_prompt_text=True)).ids == b""


async def test_one_prompt_in_a_hundred_goes_without_ids(handing: Counter) -> None:
    handing.chance = 0.0099
    assert handing.counter.ids_field("http://engine") is None
    handing.chance = 0.01
    assert handing.counter.ids_field("http://engine") is not None


async def test_usage_of_ids_that_were_sent_is_no_proof_of_counts(handing: Counter) -> None:
    count = await handing.count()
    for number in range(LIMIT):
        assert handing.counter.mode is Source.LOCAL
        handing.counter.settle(count, count.tokens + 1)
        if number < LIMIT - 1:
            for _ in range(WINDOW):  # were these compared, the wrong ones would be forgotten
                handing.counter.settle(count, count.tokens, handed_to="http://engine")
    assert handing.counter.mode is Source.ENGINE


async def test_an_endpoint_that_reports_another_number_gets_ids_no_more(handing: Counter) -> None:
    count = await handing.count()
    handing.counter.settle(count, count.tokens + 1, handed_to="http://engine")
    assert handing.counter.ids_field("http://engine") is None
    assert not handing.counter.takes_ids("http://engine")
    assert len(handing.refusals) == 1
    assert not handing.drifts
    handing.counter.settle(count, count.tokens + 1, handed_to="http://engine")
    assert len(handing.refusals) == 1


async def test_an_endpoint_that_does_not_say_whether_it_takes_ids_is_asked_again(handing: Counter) -> None:
    answers: list[httpx.Response] = [httpx.Response(503), httpx.Response(503)]

    def answer(request: httpx.Request) -> httpx.Response:
        return answers.pop() if "chat" in request.url.path and answers else handing.engine.answer(request)

    handing.engine.target = engine_at("http://engine", answer)
    await handing.counter.verify(handing.engine.target)
    assert handing.counter.ids_field("http://engine") is None
    assert handing.counter.not_compared() == set()
    handing.now += FIRST_AGAIN
    await handing.counter.recheck()
    assert handing.counter.ids_field("http://engine") is not None


async def test_where_no_conversation_can_be_counted_nothing_is_asked_again(
    made: Any, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """A base model has no template: there are no ids of one to send."""
    folder = tmp_path / "base"
    shutil.copytree(tokenizer_folder, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    base: Counter = await made(TokenizerSource(str(folder)))
    base.hand_over_from = 1
    await base.counter.verify(base.engine.target)
    base.engine.asked.clear()
    base.now += FIRST_AGAIN
    await base.counter.recheck()
    assert base.engine.asked == []


async def test_an_endpoint_that_comes_up_anew_while_it_is_probed_is_asked_again_if_that_fails(ours: Counter) -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()
    compares = ours.counter._probed

    async def slowly(target: Target) -> Any:
        reached.set()
        await goes_on.wait()
        return await compares(target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours.counter, "_probed", slowly)
        earlier = asyncio.create_task(ours.counter.verify(ours.engine.target))
        await reached.wait()
    ours.engine.up = False
    with pytest.raises(CountUnavailableError):
        await ours.counter.verify(ours.engine.target)
    ours.engine.up = True
    goes_on.set()
    await earlier
    ours.engine.asked.clear()
    ours.now += FIRST_AGAIN
    await ours.counter.recheck()
    assert ours.engine.asked


async def test_an_endpoint_that_comes_up_with_another_template_gets_no_ids_from_then_on(handing: Counter) -> None:
    fields: set[IdsField | None] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        fields.add(handing.counter.ids_field("http://engine"))
        return handing.engine.answer(request)

    handing.engine.more_for = {"messages": 3}
    await handing.counter.verify(engine_at("http://engine", answer))
    assert handing.counter.mode is Source.ENGINE
    assert fields == {None}, "requests that were counted before it came up may go to it at once"
    assert handing.counter.ids_field("http://engine") is None


async def test_a_tokenizer_is_refuted_once_all_endpoints_that_are_up_were_compared_and_none_counts_so(
    ours: Counter,
) -> None:
    assert not ours.counter.refuted, "none was compared"
    await ours.counter.verify(ours.engine.target)
    assert not ours.counter.refuted
    ours.engine.more_for = {"messages": 3}
    await ours.counter.verify(ours.engine.target)
    assert ours.counter.refuted
    ours.engine.listed = False
    assert not ours.counter.refuted, "none is up"


async def test_a_conversation_that_the_engine_counts_brings_no_ids(handing: Counter) -> None:
    await handing.drift()
    assert handing.counter.mode is Source.ENGINE
    assert (await handing.count()).ids == b""


async def test_an_engine_that_counts_all_it_serves_is_no_reason_for_a_warning(
    made: Any, tokenizer_folder: Path
) -> None:
    engine = Engine(TokenizerSource(str(tokenizer_folder)))
    engine.target = replace(engine.target, kind=LLAMA_SERVER)
    counter = await made(None, engine)
    assert counter.switches == []
    assert counter.counter.reason == "llama-server counts its prompts itself"


async def test_what_nobody_counts_is_bounded_from_above(made: Any, tokenizer_folder: Path) -> None:
    engine = Engine(TokenizerSource(str(tokenizer_folder)))
    engine.target = replace(engine.target, kind=OLLAMA)
    counter = await made(None, engine)
    count = await counter.count()
    assert (count.source, counter.counter.mode) == (Source.BOUND, Source.BOUND)
    assert count.tokens > len(USER["content"])
    counter.counter.settle(count, 3)
    assert counter.drifts == [], "a bound is wrong on purpose"
    assert engine.asked == []
    (switch,) = counter.switches
    assert "give its tokenizer" in switch


async def test_with_a_tokenizer_it_is_counted_here_until_usage_contradicts(made: Any, tokenizer_folder: Path) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    engine.target = replace(engine.target, kind=OLLAMA)
    counter = await made(source, engine)
    assert await counter.counter.verify(engine.target) is None
    assert (await counter.count()).source is Source.LOCAL
    await counter.drift()
    assert (await counter.count()).source is Source.ESTIMATE
    assert counter.counter.mode is Source.ESTIMATE
    assert engine.asked == []


@pytest.mark.parametrize("kind", [SGLANG, OLLAMA])
async def test_a_cut_that_its_engine_does_not_make_makes_no_prompt_shorter(
    made: Any, tokenizer_folder: Path, kind: EngineKind
) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    counter = await made(source, engine)
    assert (await counter.count(truncate_prompt_tokens=1)).prompts == (1,)
    engine.target = replace(engine.target, kind=kind)
    await counter.counter.verify(engine.target)
    counter = await made(source, engine)
    whole = (await counter.count()).prompts
    for _ in range(2):
        assert (await counter.count(truncate_prompt_tokens=1)).prompts == whole
        engine.listed = False  # it comes back
    engine.listed = True
    await counter.drift()
    count = await counter.count(truncate_prompt_tokens=1)
    assert (count.prompts, count.source is Source.LOCAL) == (whole, False)


async def test_what_kinds_of_one_model_treat_in_different_ways_is_estimated(made: Any, tokenizer_folder: Path) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    counter = await made(source, engine)
    counter.counter._engine = EngineCounter(
        lambda: (engine.target, replace(engine.target, url="http://other", kind=SGLANG)), lambda: 5
    )
    assert (await counter.count()).source is Source.LOCAL
    count = await counter.count(truncate_prompt_tokens=1)
    assert count.source is Source.ESTIMATE
    assert count.tokens > 1


async def test_what_another_engine_refuses_to_count_stays_counted_here(made: Any, tokenizer_folder: Path) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    engine = Engine(source)
    engine.counts_messages = engine.parses_tools = False
    engine.target = replace(engine.target, kind=SGLANG)
    counter = await made(source, engine)
    await counter.counter.verify(engine.target)
    for api in (Api.CHAT, Api.MESSAGES):
        assert (await counter.count(api)).source is Source.LOCAL


async def test_where_an_engine_fails_all_that_runs_what_cannot_be_counted_is_bounded_from_above_too(
    made: Any, tokenizer_folder: Path
) -> None:
    engine = Engine(TokenizerSource(str(tokenizer_folder)))
    engine.target = replace(engine_at("http://engine", lambda _: httpx.Response(404)), kind=LLAMA_SERVER)
    counter = await made(None, engine)
    text = "\N{BRAIN}" * 200  # four bytes and as many tokens each, in a vocabulary that lacks it
    count = await counter.count(messages=[{"role": "user", "content": text}])
    assert count.source is Source.BOUND
    assert count.tokens >= len(text.encode())


LARGE = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 95}]
"""Too many bytes to be counted on the event loop."""


def other_vocabulary(folder: Path) -> None:
    written = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(written))


def other_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


def broken(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"half":')


change = pytest.mark.parametrize("change", [other_vocabulary, other_template, broken, shutil.rmtree])
in_a_process = pytest.mark.parametrize("pool", [1], indirect=True)


@pytest.fixture
async def edited(made: Any, tokenizer_folder: Path, tmp_path: Path) -> tuple[Counter, Path]:
    """A counter that hands over token ids, and the folder of its tokenizer, which the engine has elsewhere."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "edited")
    counter: Counter = await made(TokenizerSource(str(folder)))
    counter.hand_over_from = 1
    counter.engine.takes_ids = IdsField.OWN
    await counter.counter.verify(counter.engine.target)
    return counter, folder


@in_a_process
@change
async def test_of_what_a_process_would_count_with_changed_files_the_engine_counts_all_and_one_warning_says_so(
    edited: tuple[Counter, Path], change: Callable[[Path], None]
) -> None:
    counter, folder = edited
    change(folder)
    for _ in range(2):
        count = await counter.count(messages=LARGE)
        assert (count.source, count.ids) == (Source.ENGINE, b"")
        small = await counter.count()
        assert small.source is Source.LOCAL
        assert small.ids
    (switch,) = counter.switches
    assert f"the files of the tokenizer {folder} changed or vanished" in switch


@in_a_process
@change
async def test_where_the_engine_counts_nothing_either_it_is_estimated(
    edited: tuple[Counter, Path], change: Callable[[Path], None]
) -> None:
    counter, folder = edited
    change(folder)
    counter.engine.target = replace(counter.engine.target, kind=OLLAMA)
    shown = {"tools": [], "response_format": {"type": "json_object"}}  # never counted, whatever the tokenizer
    for more in ({}, shown):
        count = await counter.count(messages=LARGE, **more)
        assert not count.source.exact
        assert count.tokens >= len(LARGE[0]["content"])
    assert len(counter.switches) == 1


@in_a_process
async def test_files_that_change_once_they_are_loaded_everywhere_or_stay_the_same_change_nothing(
    edited: tuple[Counter, Path],
) -> None:
    counter, folder = edited
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes())
    (folder / "model.safetensors").touch()
    before = await counter.count(messages=LARGE)
    assert (before.source, before.ids != b"") == (Source.LOCAL, True)
    shutil.rmtree(folder)
    assert await counter.count(messages=LARGE) == before
    assert counter.switches == []


@change
async def test_one_that_was_dropped_here_is_not_replaced_by_another(
    edited: tuple[Counter, Path], change: Callable[[Path], None]
) -> None:
    counter, folder = edited
    source = TokenizerSource(str(folder))
    _LOADED.pop(source)
    assert (await counter.count()).source is Source.LOCAL
    _LOADED.pop(source)
    change(folder)
    assert [(await counter.count()).source for _ in range(2)] == [Source.ENGINE] * 2
    assert len(counter.switches) == 1
