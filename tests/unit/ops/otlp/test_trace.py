from itertools import count

import pytest
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.ops.otlp.trace import Context, Kind, Sampler, Trace, told

TRACE, SPAN = 0xAF7651916CD43DD8448EB211C80319C0, 0xB7AD6B7169203331
GIVEN = b"00-af7651916cd43dd8448eb211c80319c0-b7ad6b7169203331-01"


def a_trace(*, state=b""):
    ids = count(7)
    return Trace(
        Context(TRACE, 1, True, state), None, "POST", "http", "kvgate:8000", "/v1/chat/completions", lambda: next(ids)
    )


def test_the_headers_of_a_client_are_read():
    assert told(GIVEN, b"a=1") == Context(TRACE, SPAN, True, b"a=1")
    assert told(GIVEN[:-2] + b"00") == Context(TRACE, SPAN, False)
    assert told(GIVEN[:-2] + b"03") == Context(TRACE, SPAN, True)  # flags of later versions say nothing here
    assert told(b"42" + GIVEN[2:] + b"-more") == Context(TRACE, SPAN, True)


def test_a_long_state_of_others_is_left_out():
    assert told(GIVEN, b"a=" + b"1" * 510) == Context(TRACE, SPAN, True, b"a=" + b"1" * 510), "all must pass on 512"
    assert told(GIVEN, b"a=1," * 16_000) == Context(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        b"",
        b"x",
        GIVEN.upper(),
        GIVEN + b"-more",
        b"ff" + GIVEN[2:],
        GIVEN.replace(b"b7ad6b7169203331", b"0" * 16),
        GIVEN.replace(b"af7651916cd43dd8448eb211c80319c0", b"0" * 32),
        GIVEN[:-1],
    ],
)
def test_headers_that_are_not_valid_begin_a_trace(wrong):
    assert told(wrong, b"a=1") is None


def test_the_headers_that_an_endpoint_gets_are_what_the_sdk_reads():
    headers = dict(Context(TRACE, 5, True, b"a=1").headers())
    carrier = {name.decode(): value.decode() for name, value in headers.items()}
    read = TraceContextTextMapPropagator().extract(carrier)
    (span,) = read.values()
    context = span.get_span_context()
    assert (context.trace_id, context.span_id, int(context.trace_flags)) == (TRACE, 5, 1)
    assert context.trace_state.to_header() == "a=1"
    assert [name for name, _ in Context(TRACE, 5, False).headers()] == [b"traceparent"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_the_share_of_traces_is_the_one_that_the_sdk_takes(share):
    ours, theirs = Sampler.named("parentbased_traceidratio", share), TraceIdRatioBased(share)
    for low in [0, 1, 2**63, 2**64 - 1, *(2**64 * part // 1000 for part in range(1000))]:
        trace_id = (5 << 64) | low
        assert ours.samples(trace_id, None) is theirs.should_sample(None, trace_id, "").decision.is_sampled()


def test_a_sampler_follows_its_parent_or_does_not():
    recorded, unrecorded = Context(TRACE, 1, True), Context(TRACE, 1, False)
    for name, alone in {"always_on": True, "always_off": False}.items():
        plain, following = Sampler.named(name), Sampler.named(f"parentbased_{name}")
        assert {plain.samples(TRACE, parent) for parent in (None, recorded, unrecorded)} == {alone}
        assert following.samples(TRACE, None) is alone
        assert following.samples(TRACE, recorded)
        assert not following.samples(TRACE, unrecorded)
    assert Sampler.named("jaeger_remote") is None


def test_each_try_has_headers_of_its_own_and_the_failed_one_says_why():
    trace = a_trace(state=b"a=1")
    trace.did(Kind.QUEUE, 1.0, 2.0)
    first = dict(trace.sent("a:1", "vllm", 2.0))
    trace.unanswered("busy", 3.0)
    second = dict(trace.sent("b:2", "vllm", 3.0))
    assert first[b"traceparent"] != second[b"traceparent"]
    assert first[b"tracestate"] == second[b"tracestate"] == b"a=1"
    queue, one, other = trace.steps
    assert (queue.began, queue.ended) == (1.0, 2.0)
    assert (one.endpoint, one.ended, one.failed) == ("a:1", 3.0, "busy")
    assert (other.endpoint, other.ended, other.failed) == ("b:2", None, None)
    assert second[b"traceparent"] == b"00-%032x-%016x-01" % (TRACE, other.span_id)
