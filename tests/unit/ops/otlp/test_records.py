import pytest
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway.admission.outcomes import Outcome
from gateway.ops.metrics import Metrics
from gateway.ops.otlp import records
from gateway.ops.otlp.trace import Context, Span, SpanKind

RESOURCE = Resource({"service.name": "kvgate"})
SCOPE = InstrumentationScope("kvgate", "1", "https://a.schema")


def the(encoded, *names):
    """The only thing down there."""
    for name in names:
        (encoded,) = getattr(encoded, name)
    return encoded


@pytest.mark.parametrize(("kind", "remote"), [(SpanKind.SERVER, True), (SpanKind.CLIENT, False)])
def test_a_span_goes_over_the_wire(kind, remote):
    made = Span(
        "chat m", kind, Context(1, 2, True, b"a=1"), Context(1, 3, True), 10, 20, {"a": 1, "b": "x"}, error=True
    )
    encoded = encode_spans([records.span(made, RESOURCE, SCOPE)])
    span = the(encoded, "resource_spans", "scope_spans", "spans")
    assert (int.from_bytes(span.trace_id), int.from_bytes(span.span_id), int.from_bytes(span.parent_span_id)) == (
        1,
        2,
        3,
    )
    assert (span.name, span.trace_state) == ("chat m", "a=1")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (10, 20)
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert bool(span.flags & 0x200) is remote
    assert the(encoded, "resource_spans", "scope_spans").schema_url == "https://a.schema"


def test_a_line_of_the_log_keeps_its_fields():
    fields = {
        "event": "endpoint changed",
        "level": "warning",
        "timestamp": "now",
        "endpoint": "a:1",
        "tries": 2,
        "nothing": None,
        "several": ["a"],
        "_record": object(),
        "exception": "Traceback",
    }
    line = the(encode_logs([records.line(fields, 7, RESOURCE, SCOPE)]), "resource_logs", "scope_logs", "log_records")
    assert (line.body.string_value, line.severity_text, line.severity_number) == ("endpoint changed", "warning", 13)
    assert line.time_unix_nano == 7
    found = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in line.attributes}
    assert found == {"endpoint": "a:1", "tries": 2, "several": "['a']", "exception.stacktrace": "Traceback"}


def test_figures_are_those_of_the_page():
    metrics = Metrics("1", ["m"])
    metrics.model("m").ended(Outcome.COMPLETED)
    metrics.model("m").answered(20, 100)
    for seconds in (0.0001, 0.003, 5.0):
        metrics.overhead.observe(seconds)
    encoded = encode_metrics(records.metrics(metrics.figures(), 1, 2, RESOURCE, SCOPE))
    found = {metric.name: metric for metric in the(encoded, "resource_metrics", "scope_metrics").metrics}
    ended = [point for point in found["kvgate_requests"].sum.data_points if point.as_double]
    assert [{pair.key: pair.value.string_value for pair in point.attributes} for point in ended] == [
        {"model": "m", "outcome": "completed"}
    ]
    (overhead,) = found["kvgate_overhead_seconds"].histogram.data_points
    assert (overhead.count, overhead.sum) == (3, 5.0031)
    assert not overhead.HasField("min")
    counted = dict(zip([*overhead.explicit_bounds, "more"], overhead.bucket_counts, strict=True))
    assert {edge: count for edge, count in counted.items() if count} == {0.0002: 1, 0.003: 1, "more": 1}
    assert {found["kvgate_overhead_seconds"].unit, found["kvgate_requests"].unit} == {"s", ""}
    lengths = found["kvgate_request_tokens"].histogram.data_points
    kinds = {pair.value.string_value for point in lengths for pair in point.attributes if pair.key == "kind"}
    assert kinds == {"prompt", "output", "total"}
    assert (overhead.start_time_unix_nano, overhead.time_unix_nano) == (1, 2)
