"""The fake as a client of it sees it."""

import asyncio
import json

import httpx
import pytest

from gateway.endpoints.exposition import parse
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.until import until

CHAT = "/v1/chat/completions"
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")


def body(path: str, **fields: object) -> dict[str, object]:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    prompt = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path)
    asked: dict[str, object] = {prompt: "one two"} if prompt else {"messages": [{"role": "user", "content": "one two"}]}
    return {"model": "fake", limit: 3, **asked, **fields}


async def post(fake: FakeVllm, path: str = CHAT, **fields: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=fake.url, timeout=60) as client:
        return await client.post(path, json=body(path, **fields))


async def stream(fake: FakeVllm, path: str = CHAT, **fields: object) -> list[str]:
    return (await post(fake, path, stream=True, **fields)).text.replace("\r\n", "\n").split("\n\n")[:-1]


def texts(events: list[str]) -> str:
    chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_every_api_answers(path, streamed):
    async with FakeVllm() as fake:
        response = await post(fake, path, stream=streamed)
        assert response.status_code == 200
        assert " 2" in response.text
        assert fake.seen[0].answered
        assert fake.metrics().count(b"vllm:generation_tokens_total{") == 1
        assert b'vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.0' in fake.metrics()


async def test_the_text_of_a_stream_counts_its_tokens():
    async with FakeVllm() as fake:
        events = await stream(fake, max_tokens=12)
        assert texts(events) == "".join(f" {number}" for number in range(12))
        assert events[-1] == "data: [DONE]"


async def test_the_events_of_a_step_can_be_spread_over_its_time():
    """Each connection has its phase: the last of four comes three quarters of a step after the first."""
    async with FakeVllm(FakeSettings(step_seconds=0.2, phases=4)) as fake:
        clock = asyncio.get_running_loop().time
        came: dict[int, float] = {}

        async def one(number: int) -> None:
            assert texts(await stream(fake, max_tokens=3)) == " 0 1 2"
            came[number] = clock()

        streams = []
        for number in range(4):  # in the order of their connections
            streams.append(asyncio.create_task(one(number)))
            await until(lambda expected=number + 1: len(fake.seen) == expected)
        await asyncio.gather(*streams)
        assert sorted(came, key=came.get) == [0, 1, 2, 3]
        assert came[3] - came[0] > 0.1


async def test_an_answer_that_ends_by_itself_stops():
    async with FakeVllm(FakeSettings(output_tokens=4)) as fake:
        whole = (await post(fake, max_tokens=20)).json()
        assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("stop", 4)
        forced = (await post(fake, max_tokens=20, ignore_eos=True)).json()
        assert (forced["choices"][0]["finish_reason"], forced["usage"]["completion_tokens"]) == ("length", 20)


async def test_usage_counts_words_ids_and_every_choice():
    async with FakeVllm() as fake:
        asked = {"stream_options": {"include_usage": True}, "n": 2}
        usage = json.loads((await stream(fake, "/v1/completions", prompt=[[1, 2, 3], [4]], **asked))[-2][6:])["usage"]
        assert usage == {"prompt_tokens": 4, "total_tokens": 16, "completion_tokens": 12}
        assert (await post(fake)).json()["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"messages": "x"}, 400, "valid list"),
        ({"messages": [{"role": "user", "content": "w " * 3000}]}, 400, "maximum context length is 2048 tokens"),
        ({"max_tokens": 5000}, 400, "cannot be greater than max_model_len"),
        ({"max_tokens": 0}, 400, "must be at least 1"),
        ({"max_tokens": "many"}, 400, "validation error"),
    ],
)
async def test_what_vllm_refuses_is_refused(fields, status, words):
    async with FakeVllm() as fake:
        response = await post(fake, **fields)
        assert response.status_code == status
        assert words in response.json()["error"]["message"]


async def test_a_full_engine_says_busy():
    async with FakeVllm(FakeSettings(max_queued=1, step_seconds=0.01)) as fake:
        first = asyncio.create_task(post(fake, max_tokens=50))
        await until(lambda: fake.scheduler.unfinished)
        assert (await post(fake)).status_code == 503
        assert (await first).status_code == 200
        assert b'reason="max_num_queued_reqs"} 1.0' in fake.metrics()


async def test_load_beyond_the_cache_preempts_and_loses_nothing():
    settings = FakeSettings(num_blocks=33, block_size=8, max_model_len=256, step_seconds=0)
    async with FakeVllm(settings) as fake:
        answers = await asyncio.gather(*(post(fake, max_tokens=80, ignore_eos=True) for _ in range(8)))
        usages = [answer.json()["usage"] for answer in answers]
        assert [usage["completion_tokens"] for usage in usages] == [80] * 8
        metrics = parse(fake.metrics())
        assert (metrics.completed, metrics.completed_output) == (8, 640)
        assert metrics.completed_prompt == sum(usage["prompt_tokens"] for usage in usages)
        assert fake.scheduler.preemptions > 0
        assert fake.gauges.usage == 0


async def test_a_client_that_leaves_frees_the_engine():
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake:
        asked = body(CHAT, stream=True, max_tokens=1000, ignore_eos=True)
        async with httpx.AsyncClient(base_url=fake.url) as client, client.stream("POST", CHAT, json=asked):
            assert fake.scheduler.unfinished == 1
        await until(lambda: fake.seen[0].client_gone_at is not None)
        assert fake.scheduler.unfinished == 0
        assert fake.scheduler.usage == 0


async def test_sleep_freezes_gauges_while_health_stays_good():
    async with FakeVllm(FakeSettings(step_seconds=0.002)) as fake, httpx.AsyncClient(base_url=fake.url) as client:
        await client.post("/sleep")
        waiting = asyncio.create_task(post(fake))
        await until(lambda: fake.scheduler.unfinished)
        assert (await client.get("/health")).status_code == 200
        assert b'vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0' in fake.metrics()
        assert b'sleep_state="awake"} 0.0' in fake.metrics()
        await client.post("/wake_up")
        assert (await waiting).status_code == 200


async def test_refusing_is_for_new_connections_only():
    async with FakeVllm() as fake, httpx.AsyncClient(base_url=fake.url) as client:
        assert (await client.get("/health")).status_code == 200
        await fake.refuse()
        assert (await client.get("/health")).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await post(fake)
        await fake.listen()
        assert (await post(fake)).status_code == 200


async def test_death_fails_what_is_in_flight_in_each_shape():
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake:
        streamed = asyncio.create_task(post(fake, stream=True, max_tokens=1000, ignore_eos=True))
        whole = asyncio.create_task(post(fake, max_tokens=1000, ignore_eos=True))
        torn = asyncio.create_task(post(fake, "/v1/responses", stream=True, max_output_tokens=1000, ignore_eos=True))
        await until(lambda: len(fake.scheduler.running) == 3)
        await fake.die()
        assert (await streamed).text.endswith('"code": 500}}\n\ndata: [DONE]\n\n')
        assert (await whole).status_code == 500
        with pytest.raises(httpx.RemoteProtocolError):
            await torn
        with pytest.raises(httpx.ConnectError):
            await post(fake)


async def test_faults_are_set_over_http_and_requests_read_back():
    async with FakeVllm() as fake, httpx.AsyncClient(base_url=fake.url) as client:
        assert (await client.post("/fake/faults", json=[{"kind": "status", "status": 500}])).status_code == 200
        assert (await post(fake)).status_code == 500
        assert (await post(fake)).status_code == 200
        await client.post("/fake/faults", json=[{"kind": "status"}])
        await client.delete("/fake/faults")
        assert (await post(fake)).status_code == 200
        seen = (await client.get("/fake/requests")).json()
        assert [request["path"] for request in seen] == [CHAT] * 3
        assert json.loads(seen[0]["body"]) == body(CHAT)


async def faulty(kind: FaultKind, **fields: object) -> list[str]:
    async with FakeVllm(faults=[Fault(kind, **fields)]) as fake:
        return await stream(fake, max_tokens=6)


async def test_busy_comes_as_the_first_event():
    events = await faulty(FaultKind.BUSY_IN_STREAM)
    assert events[0].startswith('data: {"error": {"message": "The engine is currently busy')
    assert events[1:] == ["data: [DONE]"]


@pytest.mark.parametrize(("after", "text"), [(0, ""), (2, " 0 1")])
async def test_an_abort_comes_with_what_was_said_before(after, text):
    events = await faulty(FaultKind.ABORT, after=after)
    assert texts(events) == text
    assert '"finish_reason":"abort"' in events[-2]


@pytest.mark.parametrize(
    ("kind", "finish", "done"),
    [(FaultKind.NO_FINISH, False, True), (FaultKind.NO_DONE, True, False), (FaultKind.TRUNCATED, False, False)],
)
async def test_a_stream_can_end_without_its_end(kind, finish, done):
    events = await faulty(kind, after=2)
    assert any('"finish_reason":"' in event for event in events) is finish
    assert (events[-1] == "data: [DONE]") is done


async def test_engine_death_is_an_error_event():
    events = await faulty(FaultKind.ENGINE_DEATH, after=2)
    assert texts(events[:3]) == " 0 1"
    assert '"code": 500}}' in events[3]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kind", [FaultKind.RESET_MID_STREAM, FaultKind.CLOSE_BEFORE_ANSWER])
async def test_a_connection_breaks(kind, streamed):
    async with FakeVllm(faults=[Fault(kind, after=1)]) as fake:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await post(fake, stream=streamed)
        assert (await post(fake, stream=streamed)).status_code == 200


@pytest.mark.parametrize("kind", [FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_MID_STREAM])
async def test_a_hang_lasts_until_the_client_gives_up(kind):
    async with FakeVllm(faults=[Fault(kind, after=1)]) as fake, httpx.AsyncClient(base_url=fake.url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=body(CHAT, stream=True), timeout=0.05)
        await until(lambda: fake.seen[0].client_gone_at is not None)
        assert fake.scheduler.unfinished == 0


async def test_a_stale_connection_closes_on_its_second_request():
    async with FakeVllm(faults=[Fault(FaultKind.STALE_KEEP_ALIVE)]) as fake:
        async with httpx.AsyncClient(base_url=fake.url) as client:
            assert (await client.post(CHAT, json=body(CHAT))).status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(CHAT, json=body(CHAT))
            assert (await client.post(CHAT, json=body(CHAT))).status_code == 200
        assert [request.connection for request in fake.seen] == [0, 0, 1]


async def test_a_slow_prefill_sends_headers_first():
    async with FakeVllm(faults=[Fault(FaultKind.SLOW_PREFILL, seconds=0.05)]) as fake:
        asked = body(CHAT, stream=True)
        async with httpx.AsyncClient(base_url=fake.url) as client, client.stream("POST", CHAT, json=asked) as response:
            assert response.status_code == 200
            assert fake.scheduler.generation_tokens == 0
            assert "[DONE]" in (await response.aread()).decode()


@pytest.mark.parametrize("kind", ["keep_alive_comments", "unknown_fields", "split", "coalesce", "crlf"])
async def test_unusual_framing_says_the_same(kind):
    events = await faulty(FaultKind(kind))
    assert texts([event for event in events if not event.startswith(":")]) == " 0 1 2 3 4 5"
    assert events[-1] == "data: [DONE]"


async def raw_segments(fault: Fault) -> list[bytes]:
    async with FakeVllm(faults=[fault]) as fake:
        reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
        asked = json.dumps(body(CHAT, stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(asked)}\r\n\r\n"
        writer.write(head.encode() + asked)
        segments = []
        while segment := await reader.read(1 << 20):
            segments.append(segment)
        writer.close()
        await writer.wait_closed()
        return segments


async def test_splits_and_joins_show_in_the_segments():
    split = await raw_segments(Fault(FaultKind.SPLIT, pieces=2))
    assert any(segment.count(b"data: ") == 1 and not segment.endswith(b"\n\n\r\n") for segment in split)
    joined = await raw_segments(Fault(FaultKind.COALESCE, pieces=5))
    assert any(segment.count(b"data: ") == 5 for segment in joined)
    assert any(b"\r\n\r\n" in event for event in await raw_segments(Fault(FaultKind.CRLF)))


async def test_a_gigantic_event_is_whole():
    events = await faulty(FaultKind.GIGANTIC, after=1, size=3_000_000)
    assert max(map(len, events)) > 3_000_000
    assert texts(events).replace("x", "") == " 0 1 2 3 4 5"
