import asyncio
import json

import pytest
import structlog

from gateway.admission.events import EndpointId
from gateway.upstream.interface import ConnectFailedError
from tests.fakes.plane import LAST, TOKEN, WHOLE, Reply, stream
from tests.unit.relay.test_fallback import ALLOW, SERVER, asked, error, occupy, two
from tests.until import until

pytestmark = pytest.mark.usefixtures("hurried")

KEYS = [{"name": "n", "key": "mykey", "limits": {"tokens_per_minute": 100, "max_tokens": 9}}]


@pytest.fixture
async def full(hurried):
    """A plane without room, and a server elsewhere."""
    plane = two(SERVER)
    first, free = await occupy(plane)
    yield plane
    free.set()
    await first.ended()
    assert plane.in_flight == len(plane.flights) == 0


async def test_it_gets_the_body_and_a_key_of_its_own_and_nothing_else(full):
    full.replies.append(Reply(WHOLE, set_cookie="a=b", openai_organization="us", content_type="application/json"))
    sent = {"authorization": "Bearer mine", "cookie": "c", "x-secret": "s", "x-request-id": "r", "user-agent": "u"}
    client = await full.ask(asked(), **sent, **ALLOW).ended()
    url, method, path, headers, body = full.sent[-1]
    assert (url, method, path) == ("http://localhost:9", "POST", "/v1/chat/completions")
    assert json.loads(body) == json.loads(asked(model="theirs"))
    assert headers == {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "kvgate",
        "authorization": "Bearer theirkey",
    }
    assert (client.status, client.body) == (200, WHOLE)
    assert not {"set-cookie", "openai-organization"} & set(client.headers)
    assert (client.headers["x-kvgate-fallback"], client.headers["x-request-id"]) == ("localhost:9", "r")
    assert "x-kvgate-prompt-tokens" not in client.headers, "nobody counted for it"


async def test_it_gets_no_priority(full):
    full.replies.append(Reply(WHOLE))
    await full.ask(asked(priority=9), **ALLOW).ended()
    assert json.loads(full.sent[-1][4]) == json.loads(asked(model="theirs"))


async def test_anthropics_api_has_its_own_headers(full):
    full.replies.append(Reply(b'{"content":[]}'))
    body = b'{"model":"m","messages":[],"max_tokens":4}'
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "mine"}
    assert (await full.ask(body, path="/v1/messages", **headers, **ALLOW).ended()).status == 200
    assert full.sent[-1][3]["x-api-key"] == "theirkey"
    assert full.sent[-1][3]["anthropic-version"] == "2023-06-01"


async def test_a_stream_passes_and_a_torn_one_is_told(full):
    full.replies.append(stream())
    client = await full.ask(asked(stream=True), **ALLOW).ended()
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert b"usage" not in client.body
    assert full.lines[-1]["completion_tokens"] == 1
    full.replies.append(stream(TOKEN))
    torn = await full.ask(asked(stream=True), **ALLOW).ended()
    assert torn.status == 200
    assert b'"code":"upstream_error"' in torn.body
    assert full.lines[-1]["outcome"] == "upstream_error"


async def test_a_long_stream_is_not_taken_for_a_silent_one(full):
    pieces = [piece for _ in range(8) for piece in (TOKEN, 100.0)]
    full.replies.append(stream(*pieces, LAST, b"data: [DONE]\n\n"))
    watching = asyncio.create_task(full.flights.watch())
    client = await full.ask(asked(stream=True), **ALLOW).ended()
    watching.cancel()
    assert client.body.count(TOKEN) == 8
    assert full.lines[-1]["outcome"] == "completed"


@pytest.mark.parametrize(
    "answer", [Reply(b'{"error":{"message":"Incorrect key sk-1"}}', status=401), ConnectFailedError("refused")]
)
async def test_where_it_does_not_answer_the_client_is_told_what_its_own_model_said(full, answer):
    full.replies.extend([answer, Reply(b"{}", status=429), Reply(WHOLE)])
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            client = await full.ask(asked(), **ALLOW).ended()
            assert (client.status, error(client)["code"]) == (429, "queue_full")
            assert b"sk-1" not in client.body
        assert (await full.ask(asked(), **ALLOW).ended()).status == 200
    assert [line["event"] for line in logs] == ["a fallback does not answer", "a fallback answers again"]
    assert "sk-1" not in str(logs)
    if isinstance(answer, Reply):
        assert (answer.closed, logs[0]["reason"]) == (True, "status 401")


async def test_one_that_falls_silent_is_told_of(full):
    full.replies += [Reply(asyncio.Event()), Reply(WHOLE)]
    watching = asyncio.create_task(full.flights.watch())
    with structlog.testing.capture_logs() as logs:
        client = await full.ask(asked(), **ALLOW).ended()
        assert (client.status, error(client)["code"]) == (504, "upstream_timeout")
        assert (await full.ask(asked(), **ALLOW).ended()).status == 200
    watching.cancel()
    assert [line["event"] for line in logs] == ["a fallback does not answer", "a fallback answers again"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_refusal_inside_of_its_answer_is_none_for_the_client(full, streams):
    said = b'{"error":{"message":"Rate limit reached for key sk-1","code":429}}'
    full.replies.append(stream(b"data: " + said + b"\n\n") if streams else Reply(said))
    with structlog.testing.capture_logs() as logs:
        client = await full.ask(asked(stream=streams), **ALLOW).ended()
    assert (client.status, error(client)["code"]) == (429, "queue_full")
    assert "retry-after" in client.headers
    assert "sk-1" not in str(client.body) + str(logs)
    assert [line["event"] for line in logs] == ["a fallback does not answer"]


async def test_an_answer_that_is_encoded_unasked_reaches_no_client(full):
    # Its header would not: the client, or a stream that a heartbeat has begun, would get what nobody can read.
    full.replies.append(Reply(b"\x1f\x8b", content_encoding="gzip"))
    client = await full.ask(asked(), **ALLOW).ended()
    assert (client.status, error(client)["code"]) == (429, "queue_full")


async def test_a_completion_without_a_limit_gets_that_of_its_key(hurried):
    """Nobody knows whether one ends after 16 tokens there."""
    plane = two(SERVER, keys=[KEYS[0] | {"limits": {"max_tokens": 20}}])
    free = asyncio.Event()
    plane.replies.extend([Reply(free, WHOLE), Reply(WHOLE)])
    key = {"authorization": "Bearer mykey"}
    held = plane.ask(asked(), **key)
    await plane.turns()
    client = await plane.ask(b'{"model":"m","prompt":"a"}', path="/v1/completions", **key, **ALLOW).ended()
    assert (client.status, json.loads(plane.sent[-1][4])["max_tokens"]) == (200, 20)
    free.set()
    await held.ended()


async def test_its_tokens_are_charged_to_the_tenant(hurried):
    plane = two(SERVER, keys=KEYS)
    free = asyncio.Event()
    plane.replies.extend([Reply(free, WHOLE), Reply(b"{}", status=500), Reply(WHOLE)])
    key = {"authorization": "Bearer mykey"}
    held = plane.ask(asked(), **key)
    await plane.turns()
    assert (await plane.ask(asked(), **key, **ALLOW).ended()).status == 429
    client = await plane.ask(asked(max_tokens=None), **key, **ALLOW).ended()
    assert int(client.headers["x-ratelimit-remaining-tokens"]) >= 96, "what did not answer was charged nothing"
    assert json.loads(plane.sent[-1][4])["max_tokens"] == 9, "its limit on output holds there, too"
    over = await plane.ask(asked(max_tokens=10), **key, **ALLOW).ended()
    assert over.status == 400 or error(over)["code"] == "queue_full"
    free.set()
    await held.ended()
    plane.replies.append(Reply(WHOLE))
    last = await plane.ask(asked(), **key).ended()
    assert 100 - int(last.headers["x-ratelimit-remaining-tokens"]) in range(10, 13), "three prompts and two answers"


async def test_a_client_that_leaves_before_the_end_is_charged_what_it_got(hurried):
    plane = two(SERVER, keys=[{**KEYS[0], "limits": {"tokens_per_minute": 1000}}])
    plane.cores.down(EndpointId("a"), "down: gone")
    key = {"authorization": "Bearer mykey"}
    plane.replies.append(stream(*[TOKEN] * 200, asyncio.Event()))
    client = plane.ask(asked(stream=True), **key, **ALLOW)
    await until(lambda: client.body.count(TOKEN) == 200)
    client.leave()
    await client.ended()
    plane.replies.append(Reply(WHOLE))
    told = await plane.ask(asked(), **key, **ALLOW).ended()
    assert int(told.headers["x-ratelimit-remaining-tokens"]) < 1000 - 200


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/responses", {"background": True, "input": "a"}),
        ("/v1/chat/completions", {"n_predict": 100_000}),
        ("/v1/chat/completions", {"Max_Tokens": 100_000}),
    ],
)
async def test_what_could_not_be_accounted_for_is_not_sent_there(hurried, path, field):
    plane = two(SERVER, keys=KEYS)
    plane.cores.down(EndpointId("a"), "down: gone")
    refused = await plane.ask(asked(**field), path=path, authorization="Bearer mykey", **ALLOW).ended()
    assert refused.status in {400, 429}, "as its own model said"
    assert plane.sent == []


@pytest.mark.parametrize(("given", "sent"), [(4, 4), (100_000, 4), (None, None)])
async def test_a_second_limit_is_not_read_elsewhere_in_place_of_the_one_that_was_allowed(hurried, given, sent):
    plane = two(SERVER, keys=KEYS)
    plane.cores.down(EndpointId("a"), "down: gone")
    plane.replies.append(Reply(WHOLE))
    body = asked(max_completion_tokens=4, max_tokens=given)
    await plane.ask(body, authorization="Bearer mykey", **ALLOW).ended()
    got = json.loads(plane.sent[-1][4])
    assert (got["max_completion_tokens"], got["max_tokens"]) == (4, sent)
