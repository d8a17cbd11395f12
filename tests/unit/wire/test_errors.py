import json
from math import inf

import pytest

from gateway.admission.outcomes import Outcome
from gateway.wire.errors import REFUSALS, error_answer, openai_error, reasons, stream_error
from gateway.wire.request import Api
from gateway.wire.stream import StreamReader

SUCCESSES = {Outcome.COMPLETED, Outcome.ENDPOINT_REFUSED}
REFUSED = sorted(REFUSALS)


def headers(answer):
    return dict(answer.headers)


def test_every_way_to_end_without_an_answer_has_its_line():
    assert set(REFUSALS) == set(Outcome) - SUCCESSES


@pytest.mark.parametrize("outcome", REFUSED)
def test_openai_clients_get_openais_shape(outcome):
    answer = error_answer(outcome, "why", param="field")
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["message"], error["param"], error["code"]) == ("why", "field", REFUSALS[outcome].code)
    assert headers(answer)[b"content-length"] == b"%d" % len(answer.body)


@pytest.mark.parametrize("outcome", REFUSED)
def test_anthropic_clients_get_anthropics_shape(outcome):
    body = json.loads(error_answer(outcome, "why", api=Api.MESSAGES).body)
    assert body == {"type": "error", "error": {"type": REFUSALS[outcome].anthropic_type, "message": "why"}}


@pytest.mark.parametrize("outcome", REFUSED)
def test_a_client_is_told_to_retry_exactly_what_can_succeed_later(outcome):
    sent = headers(error_answer(outcome, "why", retry_after=2.5))
    if REFUSALS[outcome].retry:
        assert b"x-should-retry" not in sent
        assert (sent[b"retry-after"], sent[b"retry-after-ms"]) == (b"3", b"2500")
    else:
        assert sent[b"x-should-retry"] == b"false"
        assert b"retry-after" not in sent
    assert REFUSALS[outcome].retry == (REFUSALS[outcome].status in {429, 500, 502, 503, 504})


@pytest.mark.parametrize("outcome", REFUSED)
def test_who_has_no_key_is_told_how_to_send_one(outcome):
    told = headers(error_answer(outcome, "why")).get(b"www-authenticate")
    assert told == (b"Bearer" if REFUSALS[outcome].status == 401 else None)


def test_a_refusal_has_its_reason_and_llm_ds_word_where_it_has_one():
    words = {
        "rejected-saturated": {Outcome.QUEUE_FULL, Outcome.WAIT_TOO_LONG, Outcome.GATEWAY_FULL},
        "rejected-ttl-expired": {Outcome.QUEUE_TIMEOUT, Outcome.NO_ENDPOINT},
        "rejected-shutting-down": {Outcome.DRAINING},
    }
    for outcome in REFUSED:
        sent = dict(reasons(outcome))
        assert sent.pop(b"x-kvgate-reason") == outcome.encode()
        expected = [word.encode() for word, outcomes in words.items() if outcome in outcomes]
        assert [*sent.values()] == expected
        assert set(sent) <= {b"x-llm-d-request-dropped-reason"}


def test_a_wait_of_less_than_a_second_is_not_none():
    assert headers(error_answer(Outcome.QUEUE_FULL, "", retry_after=0.2))[b"retry-after"] == b"1"
    assert b"retry-after" not in headers(error_answer(Outcome.QUEUE_FULL, ""))
    never = headers(error_answer(Outcome.RATE_LIMIT_EXCEEDED, "", retry_after=inf))
    assert (never[b"x-should-retry"], b"retry-after" in never) == (b"false", False)


@pytest.mark.parametrize("text", ['quote " and \\ and \n newline', "\x00\x1f", "日本語", "\u2028"])
def test_whatever_a_message_holds_it_stays_one_event(text):
    assert json.loads(openai_error(text, "t", None))["error"]["message"] == text
    for api in Api:
        event = stream_error(api, Outcome.UPSTREAM_ERROR, text)
        assert event.endswith(b"\n\n")
        assert event.count(b"\n\n") == 1


@pytest.mark.parametrize("api", Api)
def test_an_error_in_a_stream_is_an_error_to_whoever_reads_that_protocol(api):
    event = stream_error(api, Outcome.UPSTREAM_TIMEOUT, "it hung")
    name, _, data = event.strip().rpartition(b"data: ")
    body = json.loads(data)
    if api is Api.MESSAGES:
        assert name == b"event: error\n"
        assert body == {"type": "error", "error": {"type": "api_error", "message": "it hung"}}
    elif api is Api.RESPONSES:
        assert name == b"event: error\n"
        assert body == {"type": "error", "code": "upstream_timeout", "message": "it hung", "param": None}
    else:
        assert name == b""
        assert body["error"]["code"] == "upstream_timeout"
    reader = StreamReader(api, strip_usage=False)
    reader.feed(event)
    assert reader.failure is not None
