"""What passes through the gateway, and how: bytes, headers, timing."""

import asyncio
import contextlib
import itertools
import json

import httpx
import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import (
    APIS,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    body,
    events,
    gateway,
    http,
    raw,
    until,
)

FRAMINGS = (
    FaultKind.KEEP_ALIVE_COMMENTS,
    FaultKind.UNKNOWN_FIELDS,
    FaultKind.SPLIT,
    FaultKind.COALESCE,
    FaultKind.CRLF,
    FaultKind.GIGANTIC,
)
NAMED = {"x-request-id": "same"}
"""Makes the ids in two answers equal."""


async def direct(fake, path, asked):
    async with httpx.AsyncClient(base_url=fake.url, trust_env=False) as client:
        return (await client.post(path, json=asked, headers=NAMED)).content


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_is_the_engines_own_bytes(path, streamed, monkeypatch):
    monkeypatch.setattr("tests.fakes.vllm.server.time.time", lambda: 1_000_000)
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        asked = body(path, stream=streamed)
        if streamed and path in {CHAT, COMPLETIONS}:
            asked["stream_options"] = {"include_usage": True}
        through = await kvgate.client.post(path, json=asked, headers=NAMED)
        assert through.status_code == 200
        expected = await direct(fake, path, asked)
        seen = [request for request in fake.seen if request.path == path]
        assert [request.header("x-request-id") for request in seen] == ["same", "same"]
        if path == RESPONSES:  # its id is the fake's own
            assert len(through.content) == len(expected)
        else:
            assert through.content == expected
        assert seen[0].body == seen[1].body, "the request goes out as it came in"


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_unusual_framing_passes_as_it_is(framing, monkeypatch):
    monkeypatch.setattr("tests.fakes.vllm.server.time.time", lambda: 1_000_000)
    fault = Fault(framing, after=2, times=2, size=3 << 20)
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(fault)
        asked = body(stream=True, stream_options={"include_usage": True})
        through = await kvgate.client.post(CHAT, json=asked, headers=NAMED)
        assert through.content == await direct(fake, CHAT, asked)
        assert (await kvgate.outcomes()) == {"completed": 1}


async def test_usage_is_asked_for_and_taken_out_again():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.post(stream=True, user="me", stream_options={"continuous_usage_stats": True})
        assert b'"usage"' not in answer.content
        assert answer.text.endswith("data: [DONE]\n\n")
        sent = json.loads(fake.seen[0].body)
        assert sent == {**body(user="me", stream=True), "stream_options": {"include_usage": True}}
        metrics = (await kvgate.client.get("/metrics")).text
        assert 'kvgate_tokens_total{kind="completion",model="fake"} 5.0' in metrics
        assert 'kvgate_tokens_total{kind="prompt",model="fake"} 2.0' in metrics


async def test_usage_a_client_asks_for_stays():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.post(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
        chunks = [json.loads(event[6:]) for event in events(answer.text)[:-1]]
        assert all(chunk["usage"]["prompt_tokens"] == 2 for chunk in chunks)
        assert chunks[-1]["choices"] == []


async def test_each_event_leaves_when_it_arrives():
    """The spacing of an engine's events is that of the client's."""
    step = 0.05
    async with FakeVllm(FakeSettings(step_seconds=step)) as fake, gateway(fake) as kvgate:
        clock = asyncio.get_running_loop().time
        async with kvgate.client.stream("POST", CHAT, json=body(tokens=12, stream=True)) as answer:
            arrived = [(clock(), piece) async for piece in answer.aiter_raw()]
        gaps = sorted(later - earlier for (earlier, _), (later, _) in itertools.pairwise(arrived[1:-1]))
        assert len(gaps) >= 9, "events came together"
        assert step * 0.5 < gaps[len(gaps) // 2] < step * 1.5


async def test_headers_are_the_clients_and_the_engines_except_those_of_a_connection():
    sent = {
        "x-custom": "kept",
        "traceparent": "00-1-2-01",
        "connection": "keep-alive, x-hop",
        "x-hop": "mine",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "upgrade": "h2c",
        "proxy-authorization": "Basic eA==",
        "x-data-parallel-rank": "3",
        "x-vllm-priority": "-9",
        "x-kvgate-anything": "1",
        "accept-encoding": "gzip, br",
        "expect": "100-continue",
        "authorization": "Bearer passes-where-kvgate-has-no-keys",
    }
    payload = json.dumps(body()).encode()
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        reader, writer = await raw(kvgate.port, http(CHAT, payload, *(f"{k}: {v}" for k, v in sent.items())))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "100 continue" in head:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        writer.close()
        got = dict(fake.seen[0].headers)
        assert got["x-custom"] == "kept"
        assert got["traceparent"] == "00-1-2-01"
        assert got["authorization"] == "Bearer passes-where-kvgate-has-no-keys"
        assert got["host"] == f"127.0.0.1:{fake.port}"
        assert got["content-length"] == str(len(payload))
        assert got["accept-encoding"] == "identity"
        gone = {"x-hop", "keep-alive", "te", "upgrade", "proxy-authorization", "x-data-parallel-rank", "expect"}
        assert not gone & got.keys()
        assert not {"x-vllm-priority", "x-kvgate-anything", "transfer-encoding"} & got.keys()
        assert len(fake.seen[0].headers) == len(got), "a header was doubled"
        assert "x-accel-buffering: no" in head
        assert head.count("\r\ndate:") == 1
        assert head.count("\r\ncontent-length:") == 1
        assert "vary: origin" in head


@pytest.mark.parametrize("given", ["abc-123", "A" * 128])
async def test_a_request_id_is_kept_and_passed_on(given):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.client.post(CHAT, json=body(), headers={"x-request-id": given})
        assert answer.headers.get_list("x-request-id") == [given]
        assert fake.seen[0].header("x-request-id") == given
        refused = await kvgate.client.post(CHAT, content=b"{", headers={"x-request-id": given})
        assert refused.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", [None, "A" * 129, "with space", "\xe9"])
async def test_a_request_id_is_made_where_there_is_no_good_one(given):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        headers = {"x-request-id": given.encode("latin-1")} if given else {}
        answer = await kvgate.client.post(CHAT, json=body(), headers=headers)
        (made,) = answer.headers.get_list("x-request-id")
        assert len(made) == 32
        assert fake.seen[0].header("x-request-id") == made


@pytest.mark.parametrize("query", ["x=%2F%20y&x=+", "x=\xe9", "x=a=b?c"])
async def test_a_path_and_query_go_on_as_they_came(query):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        reader, writer = await raw(kvgate.port, http(f"{CHAT}?{query}", json.dumps(body()).encode()))
        status = await reader.readline()
        writer.close()
        if b" 400 " in status:
            return  # what is not in a URL at all
        assert [request.path for request in fake.seen if request.path != "/tokenize"] == [f"{CHAT}?{query}"]


async def test_a_client_cannot_jump_the_engines_queue():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await kvgate.post(priority=-5)
        await kvgate.post(priority=3)
        await kvgate.post()
        assert [request.header("x-vllm-priority") for request in fake.seen] == ["0", "3", None]


async def test_the_endpoints_own_key_replaces_the_clients():
    async with FakeVllm() as fake:
        models = [{"endpoints": [{"url": fake.url, "api_key": "theirs"}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models) as kvgate:
            for headers in ({"authorization": "Bearer mine"}, {"x-api-key": "mine"}, {}):
                assert (await kvgate.client.post(CHAT, json=body(), headers=headers)).status_code == 200
        assert [request.header("authorization") for request in fake.seen] == ["Bearer theirs"] * 3
        assert [request.header("x-api-key") for request in fake.seen] == [None] * 3


async def test_an_engine_that_does_not_know_our_key_is_no_fault_of_the_clients():
    async with FakeVllm() as fake:
        models = [{"endpoints": [{"url": fake.url, "api_key": "theirs"}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models) as kvgate:
            fake.faults.add(Fault(FaultKind.STATUS, status=401, times=2))
            answer = await kvgate.post()
            assert answer.status_code == 502
            assert "key" in answer.json()["error"]["message"]


async def test_what_is_not_admitted_is_relayed_and_responses_are_followed():
    async with FakeVllm() as first, FakeVllm() as second, gateway(first, second) as kvgate:
        counted = await kvgate.client.post("/v1/messages/count_tokens", json=body(MESSAGES))
        assert counted.json()["input_tokens"] == 2
        assert (await kvgate.client.post("/tokenize", json={"prompt": "a b c"})).json()["count"] == 3
        assert (await kvgate.client.post("/detokenize", json={"tokens": [1, 2]})).json() == {"prompt": "1 2"}
        assert (await kvgate.client.post("/v1/embeddings", json={"input": "x"})).status_code == 404, "the fake has none"
        answers = await asyncio.gather(*(kvgate.post(RESPONSES) for _ in range(4)))
        made = [answer.json()["id"] for answer in answers]
        assert first.responses
        assert second.responses
        for response_id in made:
            found = await kvgate.client.get(f"/v1/responses/{response_id}")
            assert (found.status_code, found.json()["id"]) == (200, response_id)
            assert (await kvgate.client.post(f"/v1/responses/{response_id}/cancel")).status_code == 200
        unknown = await kvgate.client.get("/v1/responses/resp_unknown")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "response_not_found")


async def test_relayed_requests_are_shared_out():
    async with FakeVllm() as first, FakeVllm() as second, gateway(first, second) as kvgate:
        for fake in (first, second):  # it has no such route, and what it lacks is asked of the other, too
            for _ in range(2):
                fake.faults.add(Fault(FaultKind.STATUS, path="/v1/embeddings", status=422))
        for _ in range(4):
            assert (await kvgate.client.post("/v1/embeddings", json={"input": "x"})).status_code == 422
        relayed = [[seen for seen in fake.seen if seen.path == "/v1/embeddings"] for fake in (first, second)]
        assert [len(seen) for seen in relayed] == [2, 2]


async def test_the_models_are_listed_with_what_they_take():
    async with FakeVllm(FakeSettings(model="org/name", max_model_len=777)) as fake, gateway(fake) as kvgate:
        (card,) = (await kvgate.client.get("/v1/models")).json()["data"]
        assert (card["id"], card["max_model_len"], card["object"]) == ("org/name", 777, "model")
        assert (await kvgate.client.get("/v1/models/org/name")).json() == card
        missing = await kvgate.client.get("/v1/models/other")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_names_that_are_configured_are_listed_before_their_endpoints_are_there():
    async with FakeVllm(FakeSettings(model="here")) as here, FakeVllm(FakeSettings(model="late")) as late:
        await late.refuse()
        models = [
            {"name": "here", "endpoints": [{"url": here.url}], "tokenizer": "/nonexistent"},
            {"name": "late", "endpoints": [{"url": late.url}], "tokenizer": "/nonexistent"},
        ]
        async with gateway(models=models, ready=False) as kvgate:

            async def first_is_there():
                return (await kvgate.state())["endpoints"][0]["healthy"]

            await until(first_is_there)
            listed = (await kvgate.client.get("/v1/models")).json()["data"]
            assert [(card["id"], card["max_model_len"] is None) for card in listed] == [("here", False), ("late", True)]
            assert (await kvgate.client.get("/v1/models/late")).json()["id"] == "late"
            missing = await kvgate.client.get("/v1/models/other")
            assert (missing.status_code, missing.json()["error"]["code"]) == (503, "no_endpoint")
            await late.listen()

            async def both_are_there():
                cards = (await kvgate.client.get("/v1/models")).json()["data"]
                return [card["id"] for card in cards if card["max_model_len"]] == ["here", "late"]

            await until(both_are_there)


async def test_where_no_name_is_known_yet_there_is_no_list():
    async with FakeVllm() as fake:
        await fake.refuse()
        async with gateway(fake, ready=False) as kvgate:
            answer = await kvgate.client.get("/v1/models")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_endpoint")
            assert int(answer.headers["retry-after"]) >= 1


async def test_the_endpoint_that_has_more_room_gets_the_request():
    settings = FakeSettings(step_seconds=0.02)
    async with (
        FakeVllm(settings) as first,
        FakeVllm(settings) as second,
        gateway(first, second) as kvgate,
        contextlib.AsyncExitStack() as open_streams,
    ):
        pieces = []
        for number in range(12):  # none ends meanwhile, and no two share a prefix
            asked = body(tokens=2000, stream=True, messages=[{"role": "user", "content": f"{number} one two"}])
            stream = kvgate.client.stream("POST", CHAT, json=asked)
            pieces.append((await open_streams.enter_async_context(stream)).aiter_raw())
            assert b"data: " in await anext(pieces[-1])  # a cold engine gets another one once it has generated
        assert len(first.seen) == len(second.seen) == 6
