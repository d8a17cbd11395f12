"""Spans, log lines and figures as records of the OpenTelemetry SDK."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.ops.merged import Family, Sample
from gateway.ops.otlp.trace import Context, Span

_SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
_ELSEWHERE = frozenset({"event", "level", "timestamp", "exception"})
_UNITS = {"_seconds": "s", "_bytes": "By"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def span(of: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """A span that has ended."""
    return ReadableSpan(
        of.name,
        _context(of.context, is_remote=False),
        # Of the spans of a request only the first has its parent in another process.
        None if of.parent is None else _context(of.parent, is_remote=of.kind == SpanKind.SERVER.name),
        resource,
        of.attributes,
        kind=SpanKind[of.kind],
        status=Status(StatusCode.ERROR if of.error else StatusCode.UNSET),
        start_time=of.began,
        end_time=of.ended,
        instrumentation_scope=scope,
    )


def _context(of: Context, *, is_remote: bool) -> SpanContext:
    state = TraceState.from_header([of.state.decode("latin-1")]) if of.state else None
    return SpanContext(of.trace_id, of.span_id, is_remote, TraceFlags(of.sampled), state)


def line(fields: Mapping[str, Any], time: int, resource: Resource, scope: InstrumentationScope) -> ReadableLogRecord:
    """A line of the log; `time` in nanoseconds since 1970."""
    level = str(fields.get("level", "info"))
    attributes = {
        name: value if isinstance(value, str | bool | int | float) else str(value)
        for name, value in fields.items()
        if name not in _ELSEWHERE and not name.startswith("_") and value is not None
    }
    if "exception" in fields:
        attributes["exception.stacktrace"] = str(fields["exception"])
    record = LogRecord(
        timestamp=time,
        observed_timestamp=time,
        severity_text=level,
        severity_number=_SEVERITIES.get(level, SeverityNumber.UNSPECIFIED),
        body=str(fields.get("event", "")),
        attributes=attributes,
    )
    return ReadableLogRecord(record, resource, scope)


def metrics(
    figures: Iterable[Family], since: int, now: int, resource: Resource, scope: InstrumentationScope
) -> MetricsData:
    """What is counted and measured, under the names that it has in `/metrics`.

    `since`: when counting began; like `now` in nanoseconds since 1970.
    """
    made = [
        Metric(family.name, family.meaning, _unit(family.name), data)
        for family in figures
        if (data := _data(family, since, now)) is not None
    ]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, made, scope.schema_url or "")], "")])


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _data(family: Family, since: int, now: int) -> Sum | Gauge | Histogram | None:
    if family.kind == "histogram":
        return Histogram(list(_histograms(family, since, now)), _CUMULATIVE)
    if family.kind not in ("counter", "gauge"):
        return None
    points = [
        NumberDataPoint(_labels(labels), since, now, value)
        for name, labels, value in family.samples
        if not name.endswith("_created")
    ]
    return Sum(points, _CUMULATIVE, is_monotonic=True) if family.kind == "counter" else Gauge(points)


def _histograms(family: Family, since: int, now: int) -> Iterator[HistogramDataPoint]:
    series: dict[tuple[str, ...], list[Sample]] = {}
    for sample in family.samples:
        name, labels, _ = sample
        if name.endswith("_bucket"):
            at = labels.index("le")
            labels = (*labels[:at], *labels[at + 2 :])
        series.setdefault(labels, []).append(sample)
    for labels, samples in series.items():
        cumulative = [(_edge(found), value) for name, found, value in samples if name.endswith("_bucket")]
        counts = [int(value) for _, value in cumulative]
        total = next((value for name, _, value in samples if name.endswith("_sum")), 0.0)
        yield HistogramDataPoint(
            _labels(labels),
            since,
            now,
            count=counts[-1],
            sum=total,
            bucket_counts=[count - before for count, before in zip(counts, [0, *counts], strict=False)],
            explicit_bounds=[edge for edge, _ in cumulative[:-1]],
            min=None,  # type: ignore[arg-type]  # unknown, and optional on the wire
            max=None,  # type: ignore[arg-type]
        )


def _edge(labels: Sequence[str]) -> float:
    return float(labels[labels.index("le") + 1])


def _labels(labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(labels[::2], labels[1::2], strict=True))
