from dataclasses import replace
from itertools import count

import pytest

from gateway.admission.events import Demand, EndpointId
from gateway.admission.outcomes import Outcome
from gateway.ops.otlp.trace import Context, Kind, SpanKind, Trace
from gateway.relay.client_identity import Client
from gateway.relay.exchange import Exchange, Fallback
from gateway.relay.routes import ROUTES
from gateway.relay.spans import CLIENT, OPERATIONS, SERVER, spans
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind as RequestKind
from gateway.wire.request import Api
from gateway.wire.usage import Usage

CHAT = "/v1/chat/completions"
PARENT = Context(9, 8, True)


def exchange(route=CHAT, status=200, host="kvgate.example:8443", **facts):
    async def send(_message):
        pass

    made = Exchange.begin({"path": route, "headers": [(b"x-request-id", b"r-1")]}, send, lambda: 100.0, Api.CHAT)
    ids = count(2)
    made.recorded = Trace(Context(9, 1, True), PARENT, "POST", "http", host, route, lambda: next(ids))
    made.response.status = status
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def of(made, outcome=Outcome.COMPLETED):
    server, *parts = spans(made.recorded, made, outcome, 110.0, 10**18)
    return server, parts


def test_every_fact_of_a_request_has_its_attribute():
    made = exchange(
        client=Client("alice"),
        stream=True,
        model="m",
        fallback=Fallback("other", None, Outcome.QUEUE_FULL),
        count=PromptCount((3, 4), Source.LOCAL, RequestKind(Api.CHAT)),
        demand=Demand((3, 4), 50),
        failures=1,
        first_event=102.5,
        usage=Usage(7, 20, 4),
        finish_reasons=("stop", "length"),
        waited=1.5,
    )
    made.recorded.did(Kind.COUNT, 100.0, 100.5)
    made.recorded.did(Kind.QUEUE, 100.5, 102.0)
    made.sent_to(EndpointId("host:8000"), "vllm")
    made.note_rule("gate", None)
    made.note_rule("order", 3)
    server, (counted, waited, tried) = of(replace(made))
    assert server.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.response.model": "other",
        "gen_ai.response.time_to_first_chunk": 2.5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 20,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": CHAT,
        "server.address": "kvgate.example",
        "server.port": 8443,
        "url.path": CHAT,
        "url.scheme": "http",
        "kvgate.counted": "local",
        "kvgate.endpoint": "host:8000",
        "kvgate.failures": 1,
        "kvgate.fallback.reason": "queue_full",
        "kvgate.flow": "alice",
        "kvgate.outcome": "completed",
        "kvgate.overhead_seconds": 0.0,
        "kvgate.position": 3,
        "kvgate.prompt_tokens": 7,
        "kvgate.request_id": "r-1",
        "kvgate.rule": "gate",
        "kvgate.sequences": 2,
        "kvgate.waited_seconds": 1.5,
    }
    assert SERVER.keys() - server.attributes.keys() == {"error.type"}
    assert (server.name, server.kind, server.context, server.parent) == (
        "chat m",
        SpanKind.SERVER,
        (9, 1, True, b""),
        PARENT,
    )
    assert (server.began, server.ended) == (10**18 + 100 * 10**9, 10**18 + 110 * 10**9)
    assert (counted.name, counted.attributes) == (
        "kvgate.count",
        {"kvgate.counted": "local", "kvgate.prompt_tokens": 7},
    )
    assert (waited.name, waited.began, waited.ended) == ("kvgate.queue", 10**18 + 100_500_000_000, 10**18 + 102 * 10**9)
    assert tried.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.response.time_to_first_chunk": 2.5,
        "http.request.method": "POST",
        "server.address": "host",
        "server.port": 8000,
    }
    assert CLIENT.keys() - tried.attributes.keys() == {"error.type"}
    assert (tried.name, tried.kind) == ("chat m", SpanKind.CLIENT)
    assert {part.parent for part in (counted, waited, tried)} == {server.context}
    assert len({span.context.span_id for span in (server, counted, waited, tried)}) == 4


def test_what_is_not_known_has_no_attribute():
    server, parts = of(exchange(status=400), Outcome.INVALID_REQUEST)
    assert server.name == "chat"
    assert server.attributes.keys() == {
        "gen_ai.operation.name",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "server.address",
        "server.port",
        "url.path",
        "url.scheme",
        "kvgate.flow",
        "kvgate.outcome",
        "kvgate.request_id",
        "kvgate.waited_seconds",
    }
    assert parts == []


FAILED = {
    (Outcome.UPSTREAM_ERROR, 502),
    (Outcome.UPSTREAM_ERROR, 200),  # midway
    (Outcome.UPSTREAM_TIMEOUT, 504),
    (Outcome.NO_ENDPOINT, 503),
    (Outcome.DRAINING, 503),
    (Outcome.GATEWAY_FULL, 503),
    (Outcome.INTERNAL_ERROR, 500),
}


@pytest.mark.parametrize(("outcome", "status"), sorted(FAILED))
def test_what_the_server_fails_at_is_an_error_by_its_outcome(outcome, status):
    server, _ = of(exchange(status=status), outcome)
    assert server.error
    assert server.attributes["error.type"] == outcome.value


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.COMPLETED, 200),
        (Outcome.CLIENT_CLOSED, None),
        (Outcome.CLIENT_CLOSED, 200),
        (Outcome.QUEUE_FULL, 429),
        (Outcome.WAIT_TOO_LONG, 429),
        (Outcome.RATE_LIMIT_EXCEEDED, 429),
        (Outcome.UNAUTHORIZED, 401),
        (Outcome.CONTEXT_LENGTH_EXCEEDED, 400),
        (Outcome.ENDPOINT_REFUSED, 422),
    ],
)
def test_a_client_that_left_or_was_refused_is_no_error(outcome, status):
    server, _ = of(exchange(status=status), outcome)
    assert not server.error


def test_of_several_tries_each_says_how_it_failed_and_the_last_how_the_request_ended():
    made = exchange(status=422, first_event=105.0, model="m")
    for endpoint in ("a:1", "/run/engine.sock"):
        made.recorded.sent(endpoint, "vllm", 101.0)
        made.recorded.unanswered("busy", 102.0)
    made.recorded.sent("[::1]:3", "vllm", 103.0)
    _, tries = of(made, Outcome.ENDPOINT_REFUSED)
    assert [span.attributes.get("error.type") for span in tries] == ["busy", "busy", "422"]
    assert [span.attributes["server.address"] for span in tries] == ["a", "/run/engine.sock", "::1"]
    assert [span.attributes.get("server.port") for span in tries] == [1, None, 3]
    assert ["gen_ai.response.time_to_first_chunk" in span.attributes for span in tries] == [False, False, True]


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        ("kvgate", "kvgate", None),
        ("[::1]:8000", "::1", 8000),
        ("", None, None),
        ("kvgate:99999999999999999999", "kvgate:99999999999999999999", None),
        ("x" * 4000, "x" * 128, None),
    ],
)
def test_the_server_is_whom_its_client_named_within_bounds(host, address, port):
    server, _ = of(exchange(host=host))
    assert (server.attributes.get("server.address"), server.attributes.get("server.port")) == (address, port)


def test_what_asks_no_model_is_plain_http():
    server, _ = of(exchange("/v1/models"))
    assert server.name == "POST /v1/models"
    assert not any(name.startswith("gen_ai") for name in server.attributes)


def test_each_operation_is_one_of_the_conventions_and_of_a_route():
    assert set(OPERATIONS.values()) == {"chat", "text_completion", "embeddings"}
    assert OPERATIONS.keys() <= {route.path for route in ROUTES}
