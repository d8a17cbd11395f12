import asyncio
import logging
import time

import pytest
from prometheus_client import CollectorRegistry

from gateway.ops.merged import Family
from gateway.ops.otlp.environment import read
from gateway.ops.otlp.telemetry import Telemetry, _Said
from tests.fakes.collector import collecting

PARENT = b"00-af7651916cd43dd8448eb211c80319c0-b7ad6b7169203331-"
ROUTE = "/v1/chat/completions"


def scope(*headers):
    return {"method": "POST", "scheme": "https", "headers": [(b"host", b"x"), *headers]}


STOPPED: list[Telemetry] = []


async def nothing():
    return []


@pytest.fixture
def environ(monkeypatch):
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.fixture
def telemetry(environ, monkeypatch):
    """Made by these variables; all are stopped at the end."""
    made = []

    def make(process=None, **variables):
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": environ.url, **variables}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        made.append(
            Telemetry(read(given), version="1", process=process, registry=CollectorRegistry(), schema_url="https://a")
        )
        return made[-1]

    yield make
    for one in made:
        if one not in STOPPED:
            asyncio.run(one.stop(nothing))


def test_a_request_without_a_trace_begins_one(telemetry):
    one, other = (telemetry().begin(scope(), ROUTE) for _ in range(2))
    assert one.parent is None
    assert one.context.trace_id != other.context.trace_id
    assert (one.method, one.scheme, one.route) == ("POST", "https", ROUTE)


def test_a_clients_trace_goes_on(telemetry):
    given = scope((b"traceparent", PARENT + b"01"), (b"tracestate", b"a=1"), (b"tracestate", b"b=2"))
    trace = telemetry().begin(given, ROUTE)
    assert trace.context.trace_id == trace.parent.trace_id == 0xAF7651916CD43DD8448EB211C80319C0
    assert trace.parent.span_id == 0xB7AD6B7169203331
    assert trace.context.state == b"a=1,b=2"


@pytest.mark.parametrize(
    ("sampler", "headers", "passed"),
    [
        ("parentbased_always_on", [(b"traceparent", PARENT + b"00")], PARENT + b"00"),
        ("always_off", [(b"traceparent", PARENT + b"01"), (b"tracestate", b"a=1")], PARENT + b"00"),
    ],
)
def test_one_that_is_not_recorded_is_not_recorded_by_the_engine_either(telemetry, sampler, headers, passed):
    given = scope(*headers)
    assert telemetry(OTEL_TRACES_SAMPLER=sampler).begin(given, ROUTE) is None
    assert dict(given["headers"]) == {**dict(scope(*headers)["headers"]), b"traceparent": passed}


def test_nor_is_one_that_began_here(telemetry):
    given = scope((b"traceparent", b"nonsense"), (b"tracestate", b"a=1"))
    assert telemetry(OTEL_TRACES_SAMPLER="always_off").begin(given, ROUTE) is None
    names = [name for name, _ in given["headers"]]
    assert names == [b"host", b"traceparent"]
    assert given["headers"][1][1].endswith(b"-00")


async def resource(telemetry, collector):
    async def figures():
        return [Family("a", "A.", "gauge", [("a", (), 1.0)])]

    STOPPED.append(telemetry)
    await telemetry.stop(figures)
    return collector.resources()[-1]


def test_each_process_is_an_instance_of_its_own(telemetry, environ):
    one = asyncio.run(resource(telemetry(), environ))
    other = asyncio.run(resource(telemetry("front-2"), environ))
    assert one["service.name"] == other["service.name"] == "kvgate"
    assert one["service.instance.id"] != other["service.instance.id"]


def test_what_the_operator_says_of_it_counts_and_several_are_told_apart(telemetry, environ):
    variables = {"OTEL_SERVICE_NAME": "door", "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod-1,team=a"}
    one = asyncio.run(resource(telemetry(**variables), environ))
    front = asyncio.run(resource(telemetry("front-2", **variables), environ))
    assert (one["service.name"], one["team"], one["service.instance.id"]) == ("door", "a", "pod-1")
    assert front["service.instance.id"] == "pod-1/front-2"


def test_a_collector_gets_the_headers_it_is_to_get(telemetry, environ):
    asyncio.run(resource(telemetry(OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20hush"), environ))
    assert environ.headers[-1]["authorization"] == "Bearer hush"


def test_a_collector_that_hangs_does_not_keep_a_process_from_ending(telemetry, environ):
    environ.free.clear()
    began = time.monotonic()
    with pytest.raises(IndexError):
        asyncio.run(resource(telemetry(), environ))
    assert time.monotonic() - began < 20


def test_no_warning_about_what_a_client_sent_is_given_as_a_reason():
    def export(_batch):
        logging.getLogger("opentelemetry.trace.span").warning("Invalid key/value pair (%s) found.", "secret")

    said = _Said()
    assert said.checked(export)([]) == "the export failed"
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("Failed to export: 503")
    assert said.checked(export)([]) == "Failed to export: 503"
