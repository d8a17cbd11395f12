import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
        ({"usage": {"total_tokens": 9}, "metadata": {"usage": {"total_tokens": 1}}}, Usage(9, 0)),
        ({"results": [{"document": {"usage": {"total_tokens": 1}}}]}, None),
        ([], None),
    ],
)
def test_the_counts_of_an_answer_are_found_wherever_its_api_has_them(answer: object, counted: Usage | None) -> None:
    body = json.dumps(answer).encode()
    assert passed(body) == passed(body, 1) == passed(body, len(body)) == counted


FORGED = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
TEXTS = st.text(alphabet='a"\\\\{}[]:é\n', max_size=8) | st.sampled_from(
    ['"usage":{"total_tokens":1}', "\\\\", '\\\\"']
)
CLIENTS = st.recursive(
    TEXTS | st.none() | st.just(FORGED),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("usage"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=300)
@given(
    repeated=st.tuples(CLIENTS, CLIENTS),
    depth=st.integers(1, 2),
    cuts=st.lists(st.integers(0, 2000), max_size=30),
    compact=st.booleans(),
)
def test_what_a_client_had_repeated_in_an_answer_is_not_its_counts(repeated, depth, cuts, compact) -> None:
    before, after = repeated
    answer = {"tools": before, "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "input_messages": after}
    nested = answer if depth == 1 else {"response": answer, "usage": {"prompt_tokens": 9}}
    body = json.dumps(nested, ensure_ascii=False, separators=(",", ":") if compact else None).encode()
    counts = PassingUsage(depth)
    for start, end in itertools.pairwise([0, *sorted({cut % len(body) for cut in cuts}), len(body)]):
        counts.feed(body[start:end])
    assert counts.read() == Usage(3, 4)


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


def test_where_a_client_had_more_fields_of_that_name_repeated_than_can_be_looked_at_nothing_counts() -> None:
    for number, counted in ((1900, Usage(9, 0)), (2100, None)):
        answer = {"tools": [{"usage": {}}] * number, "usage": {"total_tokens": 9}, "output": "x" * 100_000}
        assert passed(json.dumps(answer).encode(), 2) == counted


def test_an_apis_own_fields_are_read_where_it_is_known() -> None:
    counts = PassingUsage()
    counts.feed(b'{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}}')
    assert counts.read(Api.MESSAGES) == Usage(7, 5, 4)
