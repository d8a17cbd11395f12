"""The contract of every kind of engine: each row of the table in docs/engines.md, in front of a fake of that engine.

The fakes are written from the engines' sources. The real ones that run here are in `test_llama_server.py` and in the
tests of vLLM.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.wire.engine_kinds import KINDS, KvOut, OverLength
from tests.fakes.foreign import FACTS, LENGTH, MODEL, SLOTS, FakeEngine
from tests.fakes.tokenizer import make_tokenizer
from tests.fakes.vllm import FakeVllm
from tests.integration.relaying import CHAT, COMPLETIONS, Running, events, gateway, until

KINDS_HERE = tuple(FACTS)
TOLD = {"tensorrt-llm": {"max_model_len": LENGTH}}
"""What an endpoint's settings must tell of an engine that does not."""
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 5}
LONG = ASKED | {"messages": [{"role": "user", "content": "word " * 2 * LENGTH}]}
KV_TOKENS = {"tgi": 1024}
"""Sizes of caches that are not told."""


@contextlib.asynccontextmanager
async def in_front(
    *fakes: FakeEngine, ready: bool = True, tokenizer: Any = None, name: str | None = None, **endpoint: Any
) -> AsyncIterator[Running]:
    endpoints = []
    for fake in fakes:
        kind = next(name for name, facts in FACTS.items() if facts is fake.facts)
        endpoints.append({"url": fake.url} | TOLD.get(kind, {}) | endpoint)
    model: dict[str, Any] = {"endpoints": endpoints, "name": name, "tokenizer": tokenizer and str(tokenizer)}
    async with gateway(models=[model], ready=ready) as running:
        yield running


async def the_endpoint(running: Running) -> dict[str, Any]:
    (endpoint,) = (await running.state())["endpoints"]
    return dict(endpoint)


async def until_down(running: Running, reason: str) -> None:
    async def is_down() -> bool:
        endpoint = await the_endpoint(running)
        return not endpoint["healthy"] and reason in endpoint["reason"]

    await until(is_down, timeout=20)


@pytest.fixture(params=KINDS_HERE)
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(request.param) as running:
        yield running


def kind_of(fake: FakeEngine) -> str:
    return next(name for name, facts in FACTS.items() if facts is fake.facts)


async def test_it_is_recognised_with_its_length_and_slots(fake: FakeEngine) -> None:
    async with in_front(fake) as running:
        endpoint = await the_endpoint(running)
        slots = {"ollama": 1, "tensorrt-llm": None}.get(kind_of(fake), SLOTS)
        assert (endpoint["kind"], endpoint["max_model_len"], endpoint["max_num_seqs"]) == (kind_of(fake), LENGTH, slots)
        assert MODEL in endpoint["models"]
        assert endpoint["missing_metrics"] == []


@pytest.mark.parametrize("kind", ["sglang", "tensorrt-llm"])
async def test_one_whose_models_name_another_owner_is_told_by_its_settings(kind: str) -> None:
    models = FACTS[kind].models
    renamed = models | {"data": [card | {"owned_by": "me"} for card in models["data"]]}
    async with FakeEngine(kind, models=renamed) as fake, in_front(fake, kind=kind) as running:
        assert (await the_endpoint(running))["kind"] == kind


async def test_one_that_is_another_kind_than_configured_gets_no_traffic(fake: FakeEngine) -> None:
    async with in_front(fake, kind="llama-server", ready=False) as running:
        await until_down(running, "llama-server")
        if kind_of(fake) in ("sglang", "tensorrt-llm"):
            await until_down(running, f"configured as `kind: llama-server`, and says that it is {kind_of(fake)}")


async def test_a_length_that_is_not_told_is_asked_for() -> None:
    async with (
        FakeEngine("tensorrt-llm") as fake,
        gateway(models=[{"endpoints": [{"url": fake.url}]}], ready=False) as running,
    ):
        await until_down(running, "max_model_len: 8192")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_passes_through(fake: FakeEngine, *, stream: bool) -> None:
    async with in_front(fake) as running:
        answer = await running.client.post(CHAT, json=ASKED | {"stream": stream})
        assert answer.status_code == 200, answer.text
        if stream:
            assert "[DONE]" in events(answer.text)[-1]
            assert "usage" not in answer.text, "the client did not ask for it"


async def test_prompts_are_counted_by_its_own_route_or_bounded_from_above(fake: FakeEngine) -> None:
    async with in_front(fake) as running:
        for path, asked in ((CHAT, ASKED), (COMPLETIONS, {"model": MODEL, "prompt": "one two three"})):
            answer = await running.client.post(path, json=asked)
            used = answer.json()["usage"]["prompt_tokens"]
            counted, by = int(answer.headers["x-kvgate-prompt-tokens"]), answer.headers["x-kvgate-counted"]
            if fake.facts.counts:
                assert (counted, by) == (used, "engine")
            else:
                assert by == "bound"
                assert counted > used


async def test_where_no_route_counts_a_configured_tokenizer_does(tmp_path: Any) -> None:
    folder = make_tokenizer(tmp_path)
    for kind in ("ollama", "tensorrt-llm"):
        async with FakeEngine(kind) as fake, in_front(fake, tokenizer=folder) as running:
            answer = await running.client.post(CHAT, json=ASKED)
            assert answer.headers["x-kvgate-counted"] == "local"


async def test_a_field_that_it_does_not_read_makes_no_prompt_shorter(fake: FakeEngine, tmp_path: Any) -> None:
    folder = None if fake.facts.counts else make_tokenizer(tmp_path)
    text = "word " * 30
    chat = ASKED | {"messages": [{"role": "user", "content": text}]}
    async with in_front(fake, tokenizer=folder) as running:
        for path, asked in ((CHAT, chat), (COMPLETIONS, {"model": MODEL, "prompt": text})):
            answer = await running.client.post(path, json=asked | {"truncate_prompt_tokens": 1})
            assert answer.status_code == 200
            assert int(answer.headers["x-kvgate-prompt-tokens"]) >= 30


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("sglang", "bootstrap_host"),
        ("sglang", "routed_dp_rank"),
        ("tensorrt-llm", "disaggregated_params"),
        ("tensorrt-llm", "best_of"),
    ],
)
async def test_a_field_that_gets_round_what_was_counted_is_refused(kind: str, field: str) -> None:
    async with FakeEngine(kind) as fake, in_front(fake) as running:
        answer = await running.client.post(CHAT, json=ASKED | {field: 8})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "forbidden_field", field)
        assert not fake.seen


async def test_a_prompt_that_is_too_long_is_refused_where_it_is_counted(fake: FakeEngine, tmp_path: Any) -> None:
    folder = None if fake.facts.counts else make_tokenizer(tmp_path)
    async with in_front(fake, tokenizer=folder) as running:
        answer = await running.client.post(CHAT, json=LONG)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert not fake.seen, "an Ollama would drop its beginning, and tell nobody"


async def test_an_output_limit_over_its_length_is_cut_by_it_or_refused(fake: FakeEngine, tmp_path: Any) -> None:
    folder = None if fake.facts.counts else make_tokenizer(tmp_path)
    async with in_front(fake, tokenizer=folder) as running:
        answer = await running.client.post(CHAT, json=ASKED | {"max_tokens": 2 * LENGTH})
        if kind_of(fake) in ("sglang", "tgi"):
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
            assert not fake.seen
        else:
            assert (answer.status_code, fake.seen[-1]["max_tokens"]) == (200, 2 * LENGTH)


@pytest.mark.parametrize("stream", [False, True])
async def test_its_own_refusal_of_a_long_prompt_reads_as_kvgates(fake: FakeEngine, *, stream: bool) -> None:
    truncates = KINDS[kind_of(fake)].over_length is OverLength.TRUNCATE
    assert (fake.facts.too_long is None) is truncates
    if fake.facts.too_long is None:
        return
    async with in_front(fake) as running:
        fake.wrong.append(fake.facts.too_long)
        answer = await running.client.post(CHAT, json=ASKED | {"stream": stream})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "tokens" in error["message"], "in the engine's own words"


async def test_one_without_room_is_asked_again_and_stays_healthy(fake: FakeEngine) -> None:
    if fake.facts.busy is None:
        assert kind_of(fake) == "tensorrt-llm", "its queue has no limit"
        return
    async with in_front(fake) as running:
        fake.wrong.append(fake.facts.busy)
        answer = await running.client.post(CHAT, json=ASKED)
        assert answer.status_code == 200, answer.text
        assert len(fake.seen) == 2
        for event in fake.facts.busy_events:
            fake.events.append(event)
            answer = await running.client.post(CHAT, json=ASKED | {"stream": True})
            assert answer.status_code == 200
            assert '"finish_reason":"stop"' in answer.text
        assert (await the_endpoint(running))["state"] == "up"


async def test_a_breakdown_that_blames_the_client_is_the_endpoints_error() -> None:
    async with FakeEngine("tgi") as fake, FakeEngine("tgi") as other, in_front(fake, other) as running:
        assert fake.facts.failed is not None
        fake.wrong.append(fake.facts.failed)
        other.wrong.append(fake.facts.failed)
        answers = [await running.client.post(CHAT, json=ASKED) for _ in range(2)]
        assert sorted(answer.status_code for answer in answers) == [200, 502], "each failed once, and the first on both"


async def test_an_ill_one_gets_no_traffic(fake: FakeEngine) -> None:
    if fake.facts.health[1] is None:
        assert kind_of(fake) == "ollama", "its server is well even if no model runs"
        return
    async with in_front(fake) as running:
        fake.ill = True
        await until_down(running, KINDS[kind_of(fake)].ill)
        fake.ill = False

        async def is_up() -> bool:
            return bool((await the_endpoint(running))["healthy"])

        await until(is_up, timeout=20)


async def test_its_cache_and_queue_are_seen(fake: FakeEngine) -> None:
    kind = KINDS[kind_of(fake)]
    if kind.gauges is None:
        assert kind.name == "ollama"
        return
    fake.state.running, fake.state.waiting, fake.state.used = 3, 2, 512
    sizes = {"kv_tokens": KV_TOKENS[kind.name]} if kind.name in KV_TOKENS else {}
    async with in_front(fake, **sizes) as running:

        async def is_seen() -> bool:
            kv = (await the_endpoint(running))["kv"]
            return bool(kv is not None and kv["observed"] == 0.5 and kv["blocks"] * kv["block_size"] == 1024)

        await until(is_seen, timeout=20)


async def test_while_requests_of_others_wait_in_it_ours_wait_here(fake: FakeEngine) -> None:
    if KINDS[kind_of(fake)].gauges is None:
        return
    async with in_front(fake) as running:
        fake.free.clear()
        ours = asyncio.create_task(running.client.post(CHAT, json=ASKED))
        await until(lambda: bool(fake.seen))
        fake.state.running, fake.state.waiting = 1, 2

        async def is_closed() -> bool:
            fake.state.used = fake.state.used % 512 + 32  # gauges that stand still say nothing
            fake.state.generated += 1
            explained = (await running.client.post("/kvgate/explain", json=ASKED)).json()
            return bool(explained["decision"]["candidates"][0]["rule"] == "engine_waiting")

        await until(is_closed, timeout=20)
        fake.free.set()
        assert (await ours).status_code == 200


@pytest.mark.parametrize(
    ("kind", "sizes", "rule"),
    [("tgi", {"kv_tokens": LENGTH}, "kv"), ("tensorrt-llm", {"kv_tokens": LENGTH}, "kv"), ("ollama", {}, "sequences")],
)
async def test_where_an_answer_is_held_from_its_start_a_second_one_waits_for_its_end(
    kind: str, sizes: dict[str, int], rule: str
) -> None:
    large = ASKED | {"max_tokens": LENGTH * 2 // 3}
    async with FakeEngine(kind) as fake, in_front(fake, **sizes) as running:
        fake.free.clear()
        both = [asyncio.create_task(running.client.post(CHAT, json=large)) for _ in range(2)]

        async def one_waits() -> bool:
            return bool(fake.seen) and any(queue["depth"] for queue in (await running.state())["queues"])

        await until(one_waits, timeout=20)
        explained = (await running.client.post("/kvgate/explain", json=large)).json()
        assert explained["decision"]["candidates"][0]["rule"] == rule
        assert len(fake.seen) == 1
        fake.free.set()
        assert [(await answer).status_code for answer in both] == [200, 200]


async def test_only_where_running_out_kills_an_answer_gets_a_limit(fake: FakeEngine) -> None:
    assert KINDS[kind_of(fake)].kv_out is not KvOut.KILL_ALL
    unlimited = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    async with in_front(fake) as running:
        answer = await running.client.post(CHAT, json=unlimited)
        assert "x-kvgate-max-tokens" not in answer.headers
        assert "max_tokens" not in fake.seen[-1]


async def test_where_an_answer_is_reserved_a_configured_limit_makes_room() -> None:
    async with FakeEngine("tgi") as fake:
        model = {"endpoints": [{"url": fake.url, "kv_tokens": 1024}], "default_max_tokens": 7}
        unlimited = {name: value for name, value in ASKED.items() if name != "max_tokens"}
        async with gateway(models=[model]) as running:
            answer = await running.client.post(CHAT, json=unlimited)
            assert answer.headers["x-kvgate-max-tokens"] == "7"
            assert fake.seen[-1]["max_tokens"] == 7


async def test_a_limit_in_a_field_that_it_does_not_read_is_set_in_one_that_it_reads() -> None:
    renamed = {name: value for name, value in ASKED.items() if name != "max_tokens"} | {"max_completion_tokens": 5}
    async with FakeEngine("ollama") as fake, in_front(fake) as running:
        answer = await running.client.post(CHAT, json=renamed)
        assert answer.headers["x-kvgate-max-tokens"] == "5"
        assert fake.seen[-1]["max_tokens"] == 5


async def test_a_completion_without_a_limit_gets_that_of_its_key_where_its_engine_does_not_end_it(
    fake: FakeEngine,
) -> None:
    model = {"endpoints": [{"url": fake.url} | TOLD.get(kind_of(fake), {})]}
    auth = {"keys": [{"name": "a", "key": "key-a", "limits": {"max_tokens": 20}}], "admin_key": "x"}
    async with gateway(models=[model], auth=auth, ready=False) as running:

        async def is_answered() -> bool:
            asked = {"model": MODEL, "prompt": "one two"}
            key = {"authorization": "Bearer key-a"}
            return (await running.client.post(COMPLETIONS, json=asked, headers=key)).status_code == 200

        await until(is_answered)
        assert fake.seen[-1].get("max_tokens") == (None if KINDS[kind_of(fake)].ends_completions else 20)


async def test_an_ollama_that_has_loaded_nothing_has_the_least_length() -> None:
    async with FakeEngine("ollama") as fake:
        fake.get["/api/ps"] = lambda _: {"models": []}
        async with in_front(fake) as running:
            assert (await the_endpoint(running))["max_model_len"] == 4096


async def test_what_waits_for_an_ollama_stays_though_a_small_model_is_loaded_beside(monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.endpoints.monitor.IDENTITY_INTERVAL", 0.2)
    loaded = [{"name": "m:latest", "context_length": LENGTH}]
    async with FakeEngine("ollama") as fake:
        fake.get["/api/ps"] = lambda _: {"models": loaded}
        async with in_front(fake) as running:
            fake.free.clear()
            asked = [asyncio.create_task(running.client.post(CHAT, json=ASKED)) for _ in range(3)]

            async def waits() -> bool:
                return sum(queue["depth"] for queue in (await running.state())["queues"]) == 2

            await until(waits)
            loaded.append({"name": "embeds:latest", "context_length": 8})
            seen = fake.asked.count("/api/ps")
            await until(lambda: fake.asked.count("/api/ps") >= seen + 3)
            fake.free.set()
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200, 200]


async def test_an_sglang_that_counts_no_conversation_is_not_refused_for_it(tmp_path: Any) -> None:
    folder = make_tokenizer(tmp_path)
    async with FakeEngine("sglang", counts_chats=False) as fake, in_front(fake, tokenizer=folder) as running:
        answer = await running.client.post(CHAT, json=ASKED)
        assert (answer.status_code, answer.headers["x-kvgate-counted"]) == (200, "local")


# Several kinds of engines under one name.


async def test_an_adapter_of_an_sglang_is_asked_for_as_at_the_engine_itself() -> None:
    """For the name in its list it answers with the base model, also if the key may use only the adapter."""
    adapter = {"id": "sql", "object": "model", "owned_by": "sglang", "root": "/sql", "parent": MODEL}
    models = {"object": "list", "data": [*FACTS["sglang"].models["data"], adapter]}
    async with FakeEngine("sglang", models=models) as fake, in_front(fake) as running:
        asked = {
            name: await running.client.post(CHAT, json=ASKED | {"model": name}) for name in (f"{MODEL}:sql", "sql")
        }
        assert [answer.status_code for answer in asked.values()] == [200, 404]
        assert [fields["model"] for fields in fake.seen] == [f"{MODEL}:sql"]
        listed = (await running.client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"]) for card in listed] == [(MODEL, None), (f"{MODEL}:sql", MODEL)]


async def test_two_kinds_that_count_alike_serve_one_model() -> None:
    async with FakeEngine("sglang") as one, FakeEngine("tgi") as other, in_front(one, other) as running:
        assert [endpoint["healthy"] for endpoint in (await running.state())["endpoints"]] == [True, True]
        assert {endpoint["model"] for endpoint in (await running.state())["endpoints"]} == {MODEL}


async def test_two_kinds_that_count_otherwise_do_not() -> None:
    async with (
        FakeEngine("sglang") as one,
        FakeEngine("tgi", more=9) as other,
        in_front(one, other, ready=False) as running,
    ):

        async def is_refused() -> bool:
            endpoints = (await running.state())["endpoints"]
            reasons = [endpoint["reason"] for endpoint in endpoints if not endpoint["healthy"]]
            return len(reasons) == 1 and "tokens here and" in reasons[0] and "`name`" in reasons[0]

        await until(is_refused, timeout=20)
        answer = await running.client.post(CHAT, json=ASKED)
        assert answer.status_code == 200, "the other one serves"


async def test_a_kind_that_does_not_count_serves_no_model_of_another() -> None:
    async with (
        FakeEngine("sglang") as one,
        FakeEngine("ollama") as other,
        in_front(one, other, ready=False, name=MODEL) as running,
    ):

        async def is_refused() -> bool:
            endpoints = (await running.state())["endpoints"]
            return any("ollama has no route that counts" in endpoint["reason"] for endpoint in endpoints)

        await until(is_refused, timeout=20)


async def test_a_kind_beside_a_vllm_is_compared_with_it() -> None:
    async with FakeVllm() as vllm, FakeEngine("sglang") as fake:
        model = {"name": "fake", "endpoints": [{"url": vllm.url}, {"url": fake.url}], "tokenizer": "/nonexistent"}
        async with gateway(models=[model], ready=False) as running:

            async def one_is_refused() -> bool:
                endpoints = (await running.state())["endpoints"]
                return sum("count alike" in endpoint["reason"] for endpoint in endpoints) == 1

            await until(one_is_refused, timeout=20)
