"""What an answer's headers tell of how kvgate treated the request."""

import asyncio
import json

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import APIS, CHAT, RESPONSES, body, gateway, until

FACTS = {"x-kvgate-queue-ms", "x-kvgate-endpoint", "x-kvgate-prompt-tokens", "x-kvgate-counted"}


def facts(answer):
    return {name: value for name, value in answer.headers.items() if name.startswith("x-kvgate-")}


@pytest.mark.parametrize("streamed", [True, False])
async def test_every_generation_says_where_it_was_made_how_long_it_waited_and_what_it_counted(streamed):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for path in APIS:
            answer = await kvgate.post(path, stream=streamed)
            assert facts(answer).keys() == FACTS
            assert answer.headers["x-kvgate-endpoint"] == fake.url.removeprefix("http://")
            assert 0 <= int(answer.headers["x-kvgate-queue-ms"]) < 1000
            assert answer.headers["x-kvgate-counted"] == "engine"
            if not streamed:
                usage = answer.json()["usage"]
                counted = usage.get("prompt_tokens", usage.get("input_tokens"))
                assert int(answer.headers["x-kvgate-prompt-tokens"]) == counted


async def test_a_refusal_of_the_engines_has_them_too_and_no_reason_of_ours():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.STATUS, path=CHAT, status=422))
        answer = await kvgate.post()
        assert answer.status_code == 422
        assert facts(answer).keys() == FACTS


async def test_a_refusal_says_why():
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        admission = {"ttft_target": None, "queue": {"ttl": 0.1}}
        async with gateway(fake, models=models, admission=admission) as kvgate:
            for answer, reason in (
                (await kvgate.client.post(CHAT, content=b"["), "invalid_request"),
                (await kvgate.post(model="other"), "model_not_found"),
                (await kvgate.post(chat_template="x"), "forbidden_field"),
            ):
                assert facts(answer) == {"x-kvgate-reason": reason}
            running = asyncio.create_task(kvgate.post(tokens=63))
            await until(lambda: fake.scheduler.running)
            waited = await kvgate.post()
            assert waited.headers["x-kvgate-reason"] == "queue_timeout"
            assert waited.headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
            assert int(waited.headers["x-kvgate-queue-ms"]) >= 100
            assert int(waited.headers["x-kvgate-prompt-tokens"]) == 2
            assert "x-kvgate-endpoint" not in waited.headers
            await running


async def test_what_is_not_generated_has_none():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        assert facts(await kvgate.client.get("/v1/models")) == {}
        assert facts(await kvgate.client.post("/tokenize", json={"model": "fake", "prompt": "one"})) == {}


async def test_a_target_that_is_no_time_is_refused_and_a_good_one_stays_here():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for name in ("x-kvgate-ttft-ms", "x-llm-d-slo-ttft-ms"):
            bad = await kvgate.client.post(CHAT, json=body(), headers={name: "soon"})
            assert (bad.status_code, bad.json()["error"]["param"]) == (400, name)
            assert (await kvgate.client.post(CHAT, json=body(), headers={name: "60000"})).status_code == 200
        sent = [request for request in fake.seen if request.path == CHAT]
        assert len(sent) == 2
        assert not any(request.header(name) for request in sent for name in ("x-kvgate-ttft-ms", "x-llm-d-slo-ttft-ms"))


async def test_an_engine_that_schedules_by_priority_is_told_the_band():
    keys = [{"name": "a", "key": "a"}, {"name": "b", "key": "b", "priority": 3}]
    async with FakeVllm() as fake, gateway(fake, auth={"keys": keys, "admin_key": "x"}, ready=False) as kvgate:

        async def ready():
            return (await kvgate.client.get("/readyz")).status_code == 200

        await until(ready)
        fake.seen.clear()
        for path in APIS:
            for key, asked in (("a", None), ("a", 2), ("a", -7), ("b", 1), ("b", 5), ("a", 1000)):
                fields = {} if asked is None else {"priority": asked}
                headers = {"authorization": f"Bearer {key}"}
                answer = await kvgate.client.post(path, json=body(path, **fields), headers=headers)
                assert answer.status_code == 200
        sent = [request for request in fake.seen if request.path in APIS]
        assert [request.header("x-vllm-priority") for request in sent] == [None, "2", "0", "3", "5", "9"] * len(APIS)
        told = [json.loads(request.body).get("priority") for request in sent]
        assert told[:18] == [None, 2, 0, 3, 5, 9] * 3, "for engines that do not read the header"


async def test_a_trusted_proxys_objective_is_the_most_urgent_band_that_a_request_may_take():
    trusted = {"trusted_objectives": {"batch": 3}}
    async with FakeVllm() as fake, gateway(fake, server={"host": "127.0.0.1", "port": 0, **trusted}) as kvgate:
        for objective, asked in (("batch", None), ("batch", 1), ("batch", 5), ("other", 1)):
            fields = {} if asked is None else {"priority": asked}
            headers = {"x-llm-d-inference-objective": objective}
            assert (await kvgate.client.post(CHAT, json=body(**fields), headers=headers)).status_code == 200
        assert [request.header("x-vllm-priority") for request in fake.seen if request.path == CHAT] == [*"3351"]


async def test_a_number_that_nobody_knows_exactly_is_said_to_be_an_estimate():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        made = (await kvgate.post(RESPONSES)).json()["id"]
        answer = await kvgate.post(RESPONSES, previous_response_id=made)
        assert answer.headers["x-kvgate-counted"] == "estimate"


async def test_a_conversation_goes_on_at_the_engine_that_has_its_last_response():
    slow = FakeSettings(step_seconds=0.01)
    async with FakeVllm(slow) as one, FakeVllm(slow) as two, gateway(one, two) as kvgate:
        made = await kvgate.post(RESPONSES)
        there = made.headers["x-kvgate-endpoint"]
        others = [asyncio.create_task(kvgate.post(tokens=63)) for _ in range(3)]
        await until(lambda: one.scheduler.running and two.scheduler.running)
        for _ in range(4):
            answer = await kvgate.post(RESPONSES, previous_response_id=made.json()["id"])
            assert (answer.status_code, answer.headers["x-kvgate-endpoint"]) == (200, there)
            others.append(asyncio.create_task(kvgate.post(tokens=63)))
        await asyncio.gather(*others)


async def test_behind_a_heartbeat_it_is_said_too():
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        admission = {"queue": {"heartbeat": 0.01}}
        async with gateway(fake, models=models, admission=admission) as kvgate:
            running = asyncio.create_task(kvgate.post(tokens=63))
            await until(lambda: fake.scheduler.running)
            waited = await kvgate.post(stream=True)
            assert waited.headers["x-kvgate-counted"] == "engine"
            await running


async def test_who_asks_about_the_tokenizer_needs_no_body():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.client.get("/tokenizer_info")
        assert answer.json()["tokenizer_class"] == "Words"


async def test_every_conversation_of_a_batch_is_counted_and_holds_a_sequence():
    conversations = [[{"role": "user", "content": text}] for text in ("one two", "three", "four five six")]
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake, gateway(fake) as kvgate:
        running = asyncio.create_task(kvgate.post(f"{CHAT}/batch", messages=conversations, tokens=30))
        await until(lambda: fake.scheduler.running)
        (endpoint,) = (await kvgate.state())["endpoints"]
        assert endpoint["kv"]["ledger"] == 3 / 256  # a block for each
        answer = await running
        assert answer.headers["x-kvgate-prompt-tokens"] == "6"
        assert answer.json()["usage"]["prompt_tokens"] == 6
        await kvgate.until_idle()
