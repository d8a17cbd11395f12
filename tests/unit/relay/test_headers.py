import re

import pytest

from gateway.admission.limits.limit import Quota, Standing
from gateway.relay.headers import (
    bearer,
    is_stream,
    rate_limits,
    request_id,
    sampled_trace,
    towards_client,
    towards_endpoint,
)


def scope(*headers):
    return {"headers": list(headers)}


def sent(*headers, api_key=None, keep_credentials=True, priority=None):
    return towards_endpoint(
        scope(*headers), b"id", api_key=api_key, keep_credentials=keep_credentials, priority=priority
    )


def test_headers_that_name_themselves_in_connection_stay_here():
    declared = ((b"connection", b"close, X-Secret"), (b"connection", b"x-other"))
    made = dict(sent(*declared, (b"x-secret", b"1"), (b"x-other", b"2")))
    assert made.keys() == {b"x-request-id", b"accept-encoding"}
    back = dict(towards_client([(b"connection", b"X-Hop"), (b"x-hop", b"1"), (b"x-kept", b"2")], b"id", length=None))
    assert back == {b"x-kept": b"2", b"x-request-id": b"id", b"x-accel-buffering": b"no"}


def test_repeated_headers_stay_repeated():
    assert [value for name, value in sent((b"x-twice", b"1"), (b"x-twice", b"2")) if name == b"x-twice"] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("api_key", "keeps", "authorization", "x_api_key"),
    [
        (None, True, b"Bearer client", b"client"),
        (None, False, None, None),
        ("engine", True, b"Bearer engine", None),
        ("engine", False, b"Bearer engine", None),
    ],
)
def test_whose_key_an_endpoint_gets(api_key, keeps, authorization, x_api_key):
    credentials = ((b"authorization", b"Bearer client"), (b"x-api-key", b"client"))
    made = dict(sent(*credentials, api_key=api_key, keep_credentials=keeps))
    assert (made.get(b"authorization"), made.get(b"x-api-key")) == (authorization, x_api_key)


def test_a_priority_is_kvgates_to_give():
    assert dict(sent((b"x-vllm-priority", b"-3"), priority=2))[b"x-vllm-priority"] == b"2"
    assert b"x-vllm-priority" not in dict(sent((b"x-vllm-priority", b"-3")))


def test_what_is_between_client_and_kvgate_goes_no_further_in_either_direction():
    asked = ((b"x-kvgate-ttft-ms", b"1"), (b"x-llm-d-slo-ttft-ms", b"2"), (b"x-kvgate-flow", b"a"))
    assert dict(sent(*asked)).keys() == {b"x-request-id", b"accept-encoding"}
    engines = [(b"x-kvgate-endpoint", b"another"), (b"x-kvgate-queue-ms", b"1")]
    assert dict(towards_client(engines, b"id", length=None)).keys() == {b"x-request-id", b"x-accel-buffering"}


def test_the_length_of_an_answer_is_told_where_it_is_known():
    engines = [(b"content-length", b"5"), (b"transfer-encoding", b"chunked"), (b"date", b"x"), (b"x-request-id", b"e")]
    assert dict(towards_client(engines, b"id", length=7))[b"content-length"] == b"7"
    assert towards_client(engines, b"id", length=None) == [(b"x-request-id", b"id"), (b"x-accel-buffering", b"no")]


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ((b"authorization", b"Bearer abc"), "abc"),
        ((b"authorization", b"bEARER  abc "), "abc"),
        ((b"authorization", b"Basic abc"), None),
        ((b"authorization", b"Bearer"), None),
        ((b"x-api-key", b"abc"), "abc"),
        ((b"x-other", b"abc"), None),
        ((b"authorization", b"Bearer \xff"), "ÿ"),
    ],
)
def test_a_key_is_found_where_sdks_put_it(headers, key):
    assert bearer(scope(headers)) == key


@pytest.mark.parametrize("given", [b"", b"a b", b"a\tb", b"\xc3\xa9", b"x" * 129])
def test_an_id_that_could_break_a_log_is_replaced(given):
    made = request_id(scope((b"x-request-id", given)))
    assert made != given
    assert len(made) == 32


def test_every_made_id_is_another():
    made = [request_id(scope()) for _ in range(600)]
    assert len({*made}) == 600
    assert all(re.fullmatch(rb"[0-9a-f]{32}", each) for each in made)
    assert request_id(scope((b"x-request-id", b"mine:1"))) == b"mine:1"


def test_what_is_left_of_rates_is_told_as_openai_tells_it():
    standing = Standing(None, Quota(1000, 250, 45.0004))
    assert rate_limits(standing) == [
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"250"),
        (b"x-ratelimit-reset-tokens", b"45001ms"),
    ]
    assert len(rate_limits(Standing(Quota(1, 1, 0.0), Quota(1, 1, 0.0)))) == 6


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("given", "trace"),
    [
        (f"00-{TRACE}-{SPAN}-01", TRACE),
        (f"00-{TRACE}-{SPAN}-03", TRACE),
        (f"00-{TRACE}-{SPAN}-00", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f'00-{TRACE}-{SPAN}-01"}}', None),
        ("", None),
    ],
)
def test_a_trace_is_known_if_the_client_keeps_it(given, trace):
    assert sampled_trace(scope((b"traceparent", given.encode()))) == trace
    assert sampled_trace(scope()) is None


@pytest.mark.parametrize(
    ("kind", "streamed"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/json", False),
        (b"application/x+text/event-stream", False),
    ],
)
def test_a_stream_is_one_however_its_type_is_written(kind, streamed):
    assert is_stream([(b"x-other", b"text/event-stream"), (b"content-type", kind)]) is streamed
