"""An OpenTelemetry collector: takes OTLP over HTTP, as protobuf, and keeps what it gets."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

SHAPES: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


@dataclass(frozen=True)
class Span:
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    state: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]
    schema_url: str


@dataclass
class Collector:
    """What was exported, and how it answers. `status` is sent to all that comes."""

    port: int
    status: int = 200
    bodies: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, path: str) -> list[Any]:
        return [body for taken, body in list(self.bodies) if taken == path]

    def spans(self) -> list[Span]:
        return [
            _span(span, scoped.schema_url, _pairs(resourced.resource.attributes))
            for body in self.of("/v1/traces")
            for resourced in body.resource_spans
            for scoped in resourced.scope_spans
            for span in scoped.spans
        ]

    def lines(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Severity, text and attributes of each line of a log."""
        return [
            (record.severity_text, record.body.string_value, _pairs(record.attributes))
            for body in self.of("/v1/logs")
            for resourced in body.resource_logs
            for scoped in resourced.scope_logs
            for record in scoped.log_records
        ]

    def resources(self) -> list[dict[str, Any]]:
        """Of everything that exports metrics."""
        return [_pairs(one.resource.attributes) for body in self.of("/v1/metrics") for one in body.resource_metrics]

    def metrics(self) -> dict[str, Any]:
        """The latest of each name."""
        return {
            metric.name: metric
            for body in self.of("/v1/metrics")
            for resourced in body.resource_metrics
            for scoped in resourced.scope_metrics
            for metric in scoped.metrics
        }


def _span(span: Any, schema_url: str, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == Status.STATUS_CODE_ERROR,
        _pairs(span.attributes),
        resource,
        schema_url,
    )


def _pairs(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    found = getattr(value, value.WhichOneof("value"))
    return [_value(each) for each in found.values] if value.HasField("array_value") else found


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.free.wait()
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if collector.status == 200:
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                collector.bodies.append((self.path, SHAPES[self.path].FromString(body)))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(server.server_address[1])
    collector.free.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.free.set()
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Collect until killed, and keep nothing."""
    with collecting() as collector:
        print(collector.url, flush=True)
        while True:
            time.sleep(1)
            collector.bodies.clear()
            collector.headers.clear()


if __name__ == "__main__":
    main()
