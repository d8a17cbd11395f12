import json

import pytest

from gateway.wire.passing_usage import PassingUsage
from gateway.wire.request import Api
from gateway.wire.usage import Usage

LONG = [0.1] * 5000


def passed(body: bytes, pieces: int = 7) -> Usage | None:
    counts, size = PassingUsage(), max(1, len(body) // pieces)
    for start in range(0, len(body), size):
        counts.feed(body[start : start + size])
    return counts.read()


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        ({"object": "list", "data": LONG, "usage": {"prompt_tokens": 7, "total_tokens": 7}}, Usage(7, 0)),
        ({"id": "r", "usage": {"total_tokens": 9}, "results": [{"text": '"usage":{}'}] * 500}, Usage(9, 0)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "details": {"cached_tokens": 1}}}, Usage(3, 4)),
        ({"usage": {"prompt_tokens": 3, "details": {"multimodal": {"image": 2}, "more": {}}, "n": 1}}, Usage(3, 0)),
        ({"embeddings": LONG, "meta": {"billed_units": {"input_tokens": 12}, "warnings": []}}, Usage(12, 0)),
        ({"meta": {"billed_units": {"input_tokens": 0, "image_tokens": 90}}}, Usage(90, 0)),
        ({"text": "so it is", "usage": {"type": "duration", "seconds": 3}}, None),
        ({"text": '"usage":{"total_tokens":5}'}, None),
        ({"usage": {"prompt_tokens": -3}}, None),
        ({"usage": {"prompt_tokens": 2**31}}, None),
        ({"usage": {"prompt_tokens": "3"}}, None),
        ({"usage": None}, None),
        ({"choices": LONG, "usage": {"prompt_tokens": 3}, "logprobs": [{"token": "usage"}] * 500}, Usage(3, 0)),
        ({"tools": [{"usage": {"total_tokens": 1}}], "usage": {"total_tokens": 9}, "kv": {"usage": None}}, Usage(9, 0)),
        ([], None),
    ],
)
def test_the_counts_of_an_answer_are_found_wherever_its_api_has_them(answer: object, counted: Usage | None) -> None:
    body = json.dumps(answer).encode()
    assert passed(body) == passed(body, 1) == passed(body, len(body)) == counted


def test_the_counts_of_a_stream_are_in_its_last_events() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
    last = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5}}\n\ndata: [DONE]\n\n'
    assert passed(event * 100 + last) == Usage(30, 5)


def test_what_has_no_end_takes_no_memory() -> None:
    counts = PassingUsage()
    for _ in range(100):
        counts.feed(b"{" * 100_000)
    assert counts.read() is None
    assert len(counts._last) < 10_000


def test_an_apis_own_fields_are_read_where_it_is_known() -> None:
    counts = PassingUsage()
    counts.feed(b'{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}}')
    assert counts.read(Api.MESSAGES) == Usage(7, 5, 4)
