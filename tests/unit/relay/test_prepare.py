import asyncio
import json

import pytest
from msgspec.structs import replace

from gateway.admission.events import EndpointId
from gateway.relay.destination import NOTICED
from gateway.tokens.count import (
    CountingOverloadedError,
    CountUnavailableError,
    EngineUnreachedError,
    PromptTooLongError,
)
from gateway.wire.request import EDITED_INLINE_BYTES, INLINE_BYTES, InvalidRequestError
from tests.fakes.plane import ASKED, WHOLE, FakePlane, Reply, asked, error_of, stream, would

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
async def plane(hurried):
    return FakePlane()


@pytest.fixture
async def observing(hurried):
    return FakePlane(admission={"mode": "observe"})


async def test_an_urgent_request_has_no_more_than_its_key_allows(plane):
    client = plane.plane.clients.named("peer")
    plane.plane.clients.identify = lambda _scope: replace(client, band=3)
    plane.replies.append(Reply(WHOLE))
    await plane.ask(asked(priority=1)).ended()
    *_, headers, body = plane.sent[0]
    assert headers["x-vllm-priority"] == "3"
    assert json.loads(body)["priority"] == 3


async def test_an_engine_that_takes_the_highest_priority_first_gets_none(plane):
    plane.up("a", kind="sglang")
    plane.replies.append(Reply(WHOLE))
    await plane.ask(asked(priority=9)).ended()
    assert "priority" not in json.loads(plane.sent[0][4])


async def test_usage_is_asked_for_where_the_client_did_not(plane):
    plane.replies.append(stream())
    await plane.ask(asked(stream=True)).ended()
    assert json.loads(plane.sent[0][4])["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("more", "times"), [(INLINE_BYTES, 2), (EDITED_INLINE_BYTES, 1), (EDITED_INLINE_BYTES // 2, 0)]
)
async def test_a_large_body_is_edited_off_the_loop(plane, monkeypatch, more, times):
    sizes = []
    run = plane.run

    async def noted(flow, size, work, *args):
        sizes.append(size)
        return await run(flow, size, work, *args)

    monkeypatch.setattr(plane, "run", noted)
    plane.replies.append(stream())
    body = asked(stream=True, stream_options={"include_usage": False}, user="x" * more)
    client = await plane.ask(body).ended()
    assert client.status == 200
    sent = json.loads(plane.sent[0][4])
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["user"] == "x" * more
    assert sizes == [len(body)] * times, "read there, then edited there"


# Requests that cannot be served.


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (PromptTooLongError(200), 400, "context_length_exceeded"),
        (InvalidRequestError("no such role", "messages"), 400, "invalid_request"),
        (CountingOverloadedError(), 429, "queue_full"),
    ],
)
async def test_what_cannot_be_counted_is_refused(plane, raised, status, code):
    plane.counter.errors.append(raised)
    client = await plane.ask().ended()
    assert (client.status, error_of(client)["code"]) == (status, code)
    assert "x-kvgate-prompt-tokens" not in client.headers
    assert plane.sent == []


async def test_what_is_too_long_is_refused_with_its_count(plane):
    client = await plane.ask(asked(max_tokens=101)).ended()
    assert (client.status, error_of(client)["code"]) == (400, "context_length_exceeded")
    assert client.headers["x-kvgate-prompt-tokens"] == "3"


async def test_generation_in_the_background_is_refused(plane):
    client = await plane.ask(b'{"model":"m","input":"x","background":true}', path="/v1/responses").ended()
    assert (client.status, error_of(client)["param"]) == (400, "background")


async def test_no_client_gets_a_llama_server_to_generate_more_than_was_accounted_for(plane):
    plane.up("a", kind="llama-server")
    for path, body in (
        ("/v1/chat/completions", asked(n_predict=90)),
        ("/v1/completions", asked(prompt="x", max_completion_tokens=90)),
    ):
        client = await plane.ask(body, path=path).ended()
        assert (client.status, error_of(client)["code"]) == (400, "forbidden_field")
    assert plane.sent == []


@pytest.mark.parametrize("pad", ["", "x" * EDITED_INLINE_BYTES], ids=["small", "large"])
async def test_no_client_gets_an_ollama_to_read_a_field_that_kvgate_did_not(plane, pad):
    body = asked(Model="n", Max_Tokens=90, pad=pad)
    plane.replies.append(Reply(WHOLE))
    assert (await plane.ask(body).ended()).status == 200
    plane.up("a", kind="ollama")
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        client = await plane.ask(body, path=path).ended()
        assert (client.status, error_of(client)["code"], error_of(client)["param"]) == (400, "forbidden_field", "model")
    assert len(plane.sent) == 1


async def test_a_model_that_nobody_serves_any_more_is_not_counted_in_vain(plane):
    async def count(*_args, **_more):
        plane.cores.remove(EndpointId("a"))
        return await type(plane.counter).count(plane.counter, *_args, **_more)

    plane.counter.count = count
    client = await plane.ask().ended()
    assert (client.status, error_of(client)["code"]) == (503, "no_endpoint")


async def test_a_prompt_that_its_engine_must_count_waits_for_one(plane):
    plane.cores.down(EndpointId("a"), "down: gone")
    plane.counter.errors.append(CountUnavailableError("nobody answers"))
    plane.replies.append(Reply(WHOLE))
    client = plane.ask()
    await asyncio.sleep(5)
    plane.up("a")
    await client.ended()
    assert client.status == 200
    assert int(client.headers["x-kvgate-queue-ms"]) >= 5000


async def test_a_prompt_is_counted_by_an_engine_in_the_place_of_all_that_have_gone(plane):
    plane.cores.down(EndpointId("a"), "draining: drained by the operator")
    plane.counter.errors.append(CountUnavailableError("nobody answers"))
    plane.replies.append(Reply(WHOLE))
    plane.add("b")
    client = plane.ask()
    await asyncio.sleep(5)
    plane.cores.remove(EndpointId("a"))
    await asyncio.sleep(5)
    plane.up("b")
    await client.ended()
    assert (client.status, plane.sent[0][0]) == (200, "http://b")
    assert plane.lines[0]["queue_ms"] == 10_000


async def test_one_that_is_counted_while_all_engines_go_waits_for_those_to_come(plane):
    counts = []

    async def count(*_args, **_more):
        counts.append(there := {*plane.directory.endpoints})
        if "a" in there:
            plane.cores.remove(EndpointId("a"))
        return await type(plane.counter).count(plane.counter, *_args, **_more)

    plane.counter.count = count
    plane.replies.append(Reply(WHOLE))
    plane.add("b")
    client = plane.ask()
    await asyncio.sleep(5)
    plane.up("b")
    await client.ended()
    assert (client.status, plane.sent[0][0]) == (200, "http://b")
    assert counts == [{"a", "b"}, {"b"}], "what takes the place of the last may have another tokenizer"


async def test_a_prompt_that_nobody_comes_to_count_is_refused(plane):
    plane.cores.down(EndpointId("a"), "down: gone")
    plane.counter.errors.extend([CountUnavailableError("nobody answers")] * 2)
    client = await plane.ask().ended()
    assert (client.status, error_of(client)["code"]) == (503, "no_endpoint")
    assert plane.lines[0]["queue_ms"] == 60_000
    assert "The prompt could not be counted: nobody answers." in error_of(client)["message"]


@pytest.mark.parametrize("answers", [True, False])
async def test_a_prompt_whose_engine_seems_up_and_takes_no_connection_is_counted_when_it_does(plane, answers):
    silences = 4 if answers else 1000
    plane.counter.errors.extend([EngineUnreachedError("it did not come to an end in time")] * silences)
    plane.replies.append(Reply(WHOLE))
    began = asyncio.get_running_loop().time()
    client = await plane.ask().ended()
    took = asyncio.get_running_loop().time() - began
    if answers:
        assert (client.status, took) == (200, pytest.approx(NOTICED * (1 + 2 + 4 + 8), abs=0.01))
    else:
        assert (client.status, error_of(client)["code"]) == (503, "no_endpoint")
        assert took == pytest.approx(plane.settings.admission.queue.no_endpoint_ttl, abs=4.0)


@pytest.mark.parametrize("why", ["answered 500", "failed: it did not come to an end in time"])
async def test_an_engine_that_is_up_and_cannot_count_is_asked_once_more(plane, why):
    plane.counter.errors.extend([CountUnavailableError(f"/tokenize of the engine {why}")] * 3)
    client = await plane.ask().ended()
    assert (client.status, len(plane.counter.errors)) == (503, 1)


# The memory of its body.


LARGE = {"p": "x" * 500_000}


@pytest.mark.parametrize(
    ("raises", "limit"),
    [(None, 101), (PromptTooLongError, 4), (CountUnavailableError, 4)],
)
async def test_a_body_is_gone_once_it_is_refused(plane, memory, raises, limit):
    plane.cores.down(EndpointId("a"), "down: gone")
    if raises is not None:
        plane.counter.errors.extend(raises(200) for _ in range(2))
    body = asked(metadata=LARGE, max_tokens=limit)
    before = memory()
    client = await plane.ask(body).ended()
    assert client.status in (400, 503)
    assert memory() - before < len(body) / 4


@pytest.mark.parametrize(
    ("errors", "body", "decision"),
    [
        ([PromptTooLongError(200)], ASKED, "context_length_exceeded"),
        ([], asked(max_tokens=101), "context_length_exceeded"),
    ],
)
async def test_to_observe_is_to_let_through_what_would_be_refused(observing, errors, body, decision):
    observing.counter.errors.extend(errors)
    observing.replies.append(Reply(WHOLE))
    client = await observing.ask(body).ended()
    assert client.status == 200
    assert observing.sent[0][4] == body
    assert would(observing) == {decision: 1}


async def test_to_observe_is_to_let_through_what_nobody_could_count(observing):
    observing.cores.down(EndpointId("a"), "down: gone")
    observing.counter.errors.extend([CountUnavailableError("nobody answers")] * 2)
    observing.replies.append(Reply(WHOLE))
    client = observing.ask()
    await asyncio.sleep(5)
    observing.up("a")
    await client.ended()
    assert (client.status, client.headers["x-kvgate-counted"]) == (200, "estimate")
    assert would(observing) == {"no_endpoint": 1}


async def test_to_observe_is_to_let_through_generation_in_the_background(observing):
    observing.replies.append(Reply(b'{"id":"resp_1","status":"queued"}'))
    body = b'{"model":"m","input":"x","background":true}'
    assert (await observing.ask(body, path="/v1/responses").ended()).status == 200
    assert would(observing) == {"forbidden_field": 1}
