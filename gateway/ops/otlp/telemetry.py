"""The export of traces, metrics and logs by OTLP. Imported only where the environment asks for it."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, Counter

from gateway.ops import logs
from gateway.ops.merged import Figures
from gateway.ops.otlp import records
from gateway.ops.otlp.environment import Batching, Environment, Signal
from gateway.ops.otlp.outbox import Outbox
from gateway.ops.otlp.trace import TRACE_HEADERS, Context, Span, Trace, told

_FLUSH = 3.0
"""Most seconds that a process which ends waits for a collector."""
_LONGEST_REASON = 300
_log = structlog.get_logger("kvgate.otlp")


class Telemetry:
    """All that one process exports.

    Args:
        environment: what the variables say.
        version: of kvgate.
        process: its name among the processes of one kvgate, where there are several; part of `service.instance.id`.
        registry: counts there what is lost.
        schema_url: of the conventions that its spans keep.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        version: str,
        process: str | None,
        registry: CollectorRegistry | None,
        schema_url: str,
    ) -> None:
        self._environment = environment
        self._resource = _resource(version, process)
        self._scope = InstrumentationScope("kvgate", version, schema_url)
        self._since = time.time_ns()
        self._random = random.Random()  # noqa: S311  # ids of traces need be unique, not secret
        dropped = Counter(
            "kvgate_telemetry_dropped",
            "Spans, log lines and exports of metrics that were lost on the way to the collector.",
            ("signal",),
            registry=registry,
        )
        said = _Said()

        def outbox(signal: Signal, batching: Batching, export: Callable[[Sequence[Any]], object]) -> Outbox[Any] | None:
            if signal not in environment.signals:
                return None
            return Outbox(signal.value, batching, said.checked(export), dropped.labels(signal=signal.value))

        self._spans = outbox(Signal.TRACES, environment.spans, self._exporting_spans())
        self._figures = outbox(Signal.METRICS, Batching(1.0, 1, 1), self._exporting_figures())
        self._lines = outbox(Signal.LOGS, environment.logs, self._exporting_lines())
        self._forget = None if self._lines is None else logs.also_to(self._log_line)
        _log.info(
            "exporting by OpenTelemetry",
            signals=sorted(signal.value for signal in environment.signals),
            instance=self._resource.attributes["service.instance.id"],
        )

    @property
    def traces(self) -> bool:
        """Whether spans are exported."""
        return self._spans is not None

    def begin(self, scope: Mapping[str, Any], route: str) -> Trace | None:
        """The trace of a request of a route that has just arrived, by its ASGI scope.

        None if it is not recorded. Then its headers, which go on to the endpoint, say so: an engine that is told
        nothing would record it.
        """
        headers = scope["headers"]
        parent = _parent(headers)
        trace_id = self._random.getrandbits(128) or 1 if parent is None else parent.trace_id
        if self._environment.sampler.samples(trace_id, parent):
            context = Context(trace_id, self._draw(), True, b"" if parent is None else parent.state)
            host = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
            return Trace(context, parent, scope["method"], scope.get("scheme", "http"), host, route, self._draw)
        if parent is None or parent.sampled:
            headers[:] = [header for header in headers if header[0] not in TRACE_HEADERS]
            span_id = self._draw() if parent is None else parent.span_id
            headers += Context(trace_id, span_id, False, b"" if parent is None else parent.state).headers()
        return None

    def export(self, spans: Iterable[Span]) -> None:
        """Export the spans of a request."""
        if self._spans is not None:
            self._spans.put(*spans)

    async def measure(self, figures: Callable[[], Awaitable[Figures]]) -> None:
        """Export these figures at even intervals, for ever."""
        while self._figures is not None:
            await asyncio.sleep(self._environment.metric_interval)
            self._figures.put((await figures(), time.time_ns()))

    async def stop(self, figures: Callable[[], Awaitable[Figures]]) -> None:
        """Export what waits, and the figures once more."""
        if self._figures is not None:
            self._figures.put((await figures(), time.time_ns()))
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._forget is not None:
            self._forget()
        until = time.monotonic() + _FLUSH
        for outbox in (self._spans, self._figures, self._lines):
            if outbox is not None:
                outbox.close(max(0.0, until - time.monotonic()))

    def _draw(self) -> int:
        return self._random.getrandbits(64) or 1

    def _log_line(self, line: Mapping[str, Any]) -> None:
        assert self._lines is not None  # noqa: S101  # else nobody would have been told of this method
        self._lines.put((dict(line), time.time_ns()))

    def _exporting_spans(self) -> Callable[[Sequence[Span]], object]:
        exporter = OTLPSpanExporter()
        return lambda spans: exporter.export([records.span(span, self._resource, self._scope) for span in spans])

    def _exporting_lines(self) -> Callable[[Sequence[tuple[dict[str, Any], int]]], object]:
        exporter = OTLPLogExporter()
        return lambda lines: exporter.export(
            [records.line(fields, at, self._resource, self._scope) for fields, at in lines]
        )

    def _exporting_figures(self) -> Callable[[Sequence[tuple[Figures, int]]], object]:
        exporter = OTLPMetricExporter()
        since, resource, scope = self._since, self._resource, self._scope

        def export(waiting: Sequence[tuple[Figures, int]]) -> object:
            ((figures, now),) = waiting
            return exporter.export(records.metrics(figures, since, now, resource, scope))

        return export


class _Said(logging.Handler):
    """The SDK's own log: kept from the process's, where each failed export would be a line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = ""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of an exporter. Others may quote what a client sent, as its `tracestate`."""
        if record.name.startswith("opentelemetry.exporter"):
            self._last = record.getMessage()

    def checked(self, export: Callable[[Sequence[Any]], object]) -> Callable[[Sequence[Any]], str | None]:
        """The same, returning why it failed, or None."""

        def send(batch: Sequence[Any]) -> str | None:
            result = export(batch)
            return (
                None
                if getattr(result, "name", "") == "SUCCESS"
                else self._last[:_LONGEST_REASON] or "the export failed"
            )

        return send


def _resource(version: str, process: str | None) -> Resource:
    given = OTELResourceDetector().detect().attributes
    instance = str(given.get("service.instance.id", uuid.uuid4()))
    several = process is not None and "service.instance.id" in given  # they would be one in the eyes of a collector
    named = {"service.name": "kvgate", "service.version": version, **given}
    return Resource.create({**named, "service.instance.id": f"{instance}/{process}" if several else instance})


def _parent(headers: Iterable[tuple[bytes, bytes]]) -> Context | None:
    parent, state = None, []
    for name, value in headers:
        if name == b"traceparent":
            parent = value
        elif name == b"tracestate":
            state.append(value)
    return told(parent, b",".join(state))
