import asyncio
import json

import pytest

from gateway.admission.events import EndpointId
from gateway.admission.outcomes import BEYOND_ITS_MODEL, Outcome
from gateway.config.fallback import FallbackSettings
from gateway.pools.directory import Endpoint
from gateway.relay.fallback_server import Unwatched
from gateway.tokens.count import CountingOverloadedError, PromptCount, Source
from gateway.tokens.features import Kind
from gateway.upstream.interface import ConnectionLostError
from tests.fakes.plane import WHOLE, FakePlane, Reply, stream

pytestmark = pytest.mark.usefixtures("hurried")

ALLOW = {"x-kvgate-fallback": "allow"}
NO_QUEUE = {"queue": {"max_requests": 0}}
SERVER = FallbackSettings.model_validate({"url": "http://localhost:9", "model": "theirs"})


def asked(**fields):
    return json.dumps({"model": "m", "messages": [], "max_tokens": 4, **fields}).encode()


def error(client):
    return json.loads(client.body)["error"]


def sample(plane, name, **labels):
    return plane.metrics.registry.get_sample_value(name, labels) or 0


def two(*fallbacks, keys=(), **admission):
    """The model `m` on `a` and its fallback `big` on `b`, each for one request at a time; `big` takes longer ones."""
    plane = FakePlane(ready=False, admission={"ttft_target": None, **NO_QUEUE, **admission}, auth={"keys": list(keys)})
    plane.directory.endpoints[EndpointId("a")].settings = plane.settings.models[0].model_copy(
        update={"fallbacks": fallbacks or (FallbackSettings(model="big"),)}
    )
    plane.up("a")
    plane.add("b")
    plane.up("b", model="big", longest=1000)
    if SERVER in fallbacks:
        server = Endpoint(
            EndpointId("localhost:9"),
            "http://localhost:9",
            "theirkey",
            plane.settings.models[0],
            Unwatched("localhost:9"),
            healthy=True,
        )
        plane.plane.elsewhere = {SERVER: server}
    return plane


async def occupy(plane, model="m"):
    """A request that has the only place of a model; and what answers it."""
    free = asyncio.Event()
    plane.replies.append(Reply(free, WHOLE))
    client = plane.ask(asked(model=model))
    await plane.turns()
    return client, free


async def test_a_request_that_finds_no_room_is_answered_by_the_other_model():
    plane = two()
    first, free = await occupy(plane)
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(user="u"), **ALLOW).ended()
    assert (client.status, client.body, client.headers["x-kvgate-fallback"]) == (200, WHOLE, "big")
    assert client.headers["x-kvgate-endpoint"] == "b"
    url, _, _, headers, body = plane.sent[-1]
    assert (url, json.loads(body)) == ("http://b", json.loads(asked(user="u", model="big")))
    assert "x-kvgate-fallback" not in headers
    line = plane.lines[-1]
    assert (line["model"], line["fallback"], line["outcome"]) == ("m", "big", "completed")
    labels = {"model": "m", "to": "big", "reason": "queue_full", "outcome": "completed"}
    assert sample(plane, "kvgate_fallbacks_total", **labels) == 1
    assert sample(plane, "kvgate_tokens_total", model="big", kind="prompt") == 3, "its endpoint did the work"
    assert sample(plane, "kvgate_tokens_total", model="m", kind="prompt") == 0
    free.set()
    assert (await first.ended()).headers.get("x-kvgate-fallback") is None
    assert plane.in_flight == 0


@pytest.mark.parametrize("header", [{}, {"x-kvgate-fallback": "perhaps"}])
async def test_without_the_clients_word_nothing_else_answers(header):
    plane = two()
    first, free = await occupy(plane)
    client = await plane.ask(asked(), **header).ended()
    expected = (400, "invalid_request") if header else (429, "queue_full")
    assert (client.status, error(client)["code"]) == expected
    free.set()
    await first.ended()


async def test_without_the_operators_word_nothing_else_answers():
    plane = two()
    plane.directory.endpoints[EndpointId("a")].settings = plane.settings.models[0]
    first, free = await occupy(plane)
    assert (await plane.ask(asked(), **ALLOW).ended()).status == 429
    free.set()
    await first.ended()


async def test_one_too_long_for_its_model_is_answered_by_a_longer_one():
    plane = two()
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(max_tokens=500), **ALLOW).ended()
    assert (client.status, client.headers["x-kvgate-fallback"]) == (200, "big")
    count = plane.counter.count

    async def otherwise(request, **_how):
        return PromptCount((7,), Source.LOCAL, Kind(request.api)) if request.model == "big" else await count(request)

    plane.counter.count = otherwise
    refused = await plane.ask(asked(max_tokens=5000), **ALLOW).ended()
    assert (refused.status, error(refused)["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 100 tokens" in error(refused)["message"], "what its own model said"
    assert "x-kvgate-fallback" not in refused.headers
    assert refused.headers["x-kvgate-prompt-tokens"] == "3"
    assert plane.lines[-1]["fallback"] is None


async def test_a_request_waits_its_time_before_it_goes_elsewhere():
    plane = two(queue={"ttl": 2.0})
    first, free = await occupy(plane)
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(), **ALLOW).ended()
    assert (client.status, client.headers["x-kvgate-fallback"]) == (200, "big")
    assert 2000 <= int(client.headers["x-kvgate-queue-ms"]) < 3000
    free.set()
    await first.ended()


async def test_where_all_refuse_the_first_one_says_when_to_come_back():
    plane = two(queue={"ttl": 2.0})
    held = [await occupy(plane), await occupy(plane, "big")]
    client = await plane.ask(asked(), **ALLOW).ended()
    alone = await plane.ask(asked(user="other")).ended()
    assert (client.status, error(client)["code"]) == (429, "queue_timeout")
    assert client.headers["retry-after"] == alone.headers["retry-after"]
    assert plane.lines[-2]["queue_ms"] == pytest.approx(4000, abs=10), "it waited in both"
    for one, free in held:
        free.set()
        await one.ended()
    assert plane.in_flight == 0


async def test_while_no_endpoint_is_up_nobody_waits_for_one():
    plane = two(queue={})
    plane.cores.down(EndpointId("a"), "gone")
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(), **ALLOW).ended()
    assert (client.status, client.headers["x-kvgate-fallback"]) == (200, "big")
    assert client.headers["x-kvgate-queue-ms"] == "0"
    plane.cores.down(EndpointId("b"), "gone")
    waiting = plane.ask(asked(), **ALLOW)
    await asyncio.sleep(5)
    plane.up("a")
    plane.replies.append(Reply(WHOLE))
    await waiting.ended()
    assert (waiting.status, "x-kvgate-fallback" in waiting.headers) == (200, False), "without a fallback it waits"


@pytest.mark.parametrize("name", ["late", "sql"])
async def test_a_model_that_has_never_been_up_is_known_by_its_settings_and_so_are_its_adapters(name):
    plane = two(queue={"no_endpoint_ttl": 1.0})
    adapters = [{"name": "sql", "path": "/sql"}]
    models = [{"name": "late", "endpoints": [{"url": "http://late"}], "fallbacks": ["big"], "lora": adapters}]
    models.append({"name": "big", "endpoints": [{"url": "http://b"}]})
    plane.plane.settings = plane.settings.model_validate({"models": models})
    plane.add("late", name="late")
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(model=name), **ALLOW).ended()
    assert (client.status, client.headers["x-kvgate-fallback"]) == (200, "big")


async def test_a_key_gets_only_the_models_it_may_use():
    keys = [{"name": "n", "key": "k", "models": ["m"]}, {"name": "o", "key": "l", "models": ["m", "big"]}]
    plane = two(keys=keys)
    held = plane.ask(asked(), authorization="Bearer l")
    free = asyncio.Event()
    plane.replies.append(Reply(free, WHOLE))
    await plane.turns()
    refused = await plane.ask(asked(), authorization="Bearer k", **ALLOW).ended()
    assert (refused.status, error(refused)["code"]) == (429, "queue_full")
    plane.replies.append(Reply(WHOLE))
    assert (await plane.ask(asked(), authorization="Bearer l", **ALLOW).ended()).status == 200
    free.set()
    await held.ended()


async def test_its_tenant_is_charged_once():
    keys = [{"name": "n", "key": "k", "limits": {"requests_per_minute": 3, "tokens_per_minute": 100}}]
    plane = two(keys=keys)
    free = asyncio.Event()
    plane.replies.extend([Reply(free, WHOLE), Reply(WHOLE)])
    held = plane.ask(asked(), authorization="Bearer k")
    await plane.turns()
    client = await plane.ask(asked(), authorization="Bearer k", **ALLOW).ended()
    assert client.headers["x-ratelimit-remaining-requests"] == "1"
    free.set()
    await held.ended()
    plane.replies.append(Reply(WHOLE))
    await plane.ask(asked(), authorization="Bearer k").ended()
    over = await plane.ask(asked(), authorization="Bearer k", **ALLOW).ended()
    assert (over.status, error(over)["code"]) == (429, "rate_limit_exceeded"), "a limit is no reason to go elsewhere"


async def test_what_two_endpoints_failed_on_is_sent_to_no_third():
    plane = two(queue={"no_endpoint_ttl": 1.0})
    plane.add("c")
    plane.up("c", model="big", longest=1000)

    class Died(Reply):
        async def read_some(self):
            plane.cores.down(EndpointId("a"), "dead")
            raise ConnectionLostError("the connection was closed")

    plane.replies.extend([Died(), Reply(b"{}", status=500)])
    client = await plane.ask(asked(), **ALLOW).ended()
    assert [url for url, *_ in plane.sent] == ["http://a", "http://b"]
    assert (client.status, error(client)["code"]) == (503, "no_endpoint"), "what its own model said"
    assert plane.in_flight == 0


async def test_a_stream_that_was_opened_by_a_heartbeat_goes_on_with_the_other_model():
    plane = two(queue={"ttl": 2.0, "heartbeat": 0.5})
    first, free = await occupy(plane)
    plane.replies.append(stream())
    client = await plane.ask(asked(stream=True), **ALLOW).ended()
    assert client.status == 200
    assert client.body.startswith(b":")
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert plane.lines[-1]["fallback"] == "big"
    free.set()
    await first.ended()


async def test_usage_is_asked_of_the_other_model_and_kept_from_its_client():
    plane = two()
    first, free = await occupy(plane)
    plane.replies.append(stream())
    client = await plane.ask(asked(stream=True), **ALLOW).ended()
    assert json.loads(plane.sent[-1][4])["stream_options"] == {"include_usage": True}
    assert b"usage" not in client.body
    assert plane.lines[-1]["completion_tokens"] == 1
    free.set()
    await first.ended()


async def test_a_large_body_is_there_again_for_the_other_model():
    plane = two()
    first, free = await occupy(plane)
    plane.replies.append(Reply(WHOLE))
    text = "x" * 2**20
    client = await plane.ask(asked(user=text), **ALLOW).ended()
    assert client.status == 200
    assert json.loads(plane.sent[-1][4])["user"] == text
    free.set()
    await first.ended()


async def test_no_memory_for_two_bodies_means_no_fallback(monkeypatch):
    plane = two()
    first, free = await occupy(plane)
    monkeypatch.setattr("gateway.relay.payload.Payload.keep_given", lambda _: False)
    assert (await plane.ask(asked(), **ALLOW).ended()).status == 429
    free.set()
    await first.ended()


async def test_of_several_the_first_that_takes_it_answers():
    plane = two(FallbackSettings(model="nowhere"), FallbackSettings(model="m"), FallbackSettings(model="big"), SERVER)
    held = [await occupy(plane), await occupy(plane, "big")]
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(), **ALLOW).ended()
    assert (client.status, client.headers["x-kvgate-fallback"]) == (200, "localhost:9")
    for one, free in held:
        free.set()
        await one.ended()


async def test_a_client_that_leaves_leaves_nothing_behind():
    plane = two(queue={"ttl": 2.0})
    held = [await occupy(plane), await occupy(plane, "big")]
    client = plane.ask(asked(), **ALLOW)
    await asyncio.sleep(3)  # in the queue of the second
    client.leave()
    await client.ended()
    assert plane.lines[-1]["outcome"] == "client_closed"
    for one, free in held:
        free.set()
        await one.ended()
    assert plane.in_flight == 0
    assert all(not driver.controller.snapshot(plane.now()).queue.depth for driver in plane.cores.drivers.values())


async def test_too_much_to_count_is_no_want_of_room_that_is_forgotten():
    plane = two()
    plane.counter.errors.append(CountingOverloadedError())
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask(asked(), **ALLOW).ended()
    assert (client.status, client.headers["x-kvgate-fallback"]) == (200, "big")


def test_only_what_another_model_may_do_better_goes_elsewhere():
    assert {*BEYOND_ITS_MODEL} == {
        *(Outcome.QUEUE_FULL, Outcome.WAIT_TOO_LONG, Outcome.QUEUE_TIMEOUT),
        *(Outcome.NO_ENDPOINT, Outcome.CONTEXT_LENGTH_EXCEEDED),
    }
