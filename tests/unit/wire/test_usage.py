import json
from typing import Any

import msgspec
import pytest

from gateway.wire.request import Api
from gateway.wire.stream import StreamReader, read_body
from gateway.wire.usage import Usage, UsageFields

# As vLLM 0.32 writes it, without and with --enable-prompt-tokens-details, of a prompt of 31 tokens with 16 cached.
OPENAI = {"prompt_tokens": 31, "total_tokens": 33, "completion_tokens": 2}
RESPONSES = {"input_tokens": 31, "output_tokens": 2, "total_tokens": 33}
SHAPES = [
    (Api.CHAT, OPENAI | {"prompt_tokens_details": None}, None),
    (Api.CHAT, OPENAI | {"prompt_tokens_details": {"cached_tokens": 16, "created_cache_tokens": 15}}, 16),
    (Api.COMPLETIONS, OPENAI, None),
    (Api.COMPLETIONS, OPENAI | {"prompt_tokens_details": {"cached_tokens": 16}}, 16),
    (Api.RESPONSES, RESPONSES | {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 15}}, 0),
    (Api.MESSAGES, {"input_tokens": 31, "output_tokens": 2}, None),
    (Api.MESSAGES, {"input_tokens": 15, "output_tokens": 2, "cache_read_input_tokens": 16}, 16),
    (
        Api.MESSAGES,
        {"input_tokens": 0, "output_tokens": 2, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 15},
        16,
    ),
]


@pytest.mark.parametrize(("api", "shape", "cached"), SHAPES)
def test_all_tokens_of_the_prompt_are_read_cached_or_not(
    api: Api, shape: dict[str, object], cached: int | None
) -> None:
    assert read_body(api, json.dumps({"usage": shape}).encode()).usage == Usage(31, 2, cached)


@pytest.mark.parametrize("details", ["text", [1], {"cached_tokens": "many"}, {"cached_tokens": 10**400}, {"a": {}}])
def test_details_of_another_shape_cost_no_counts(details: object) -> None:
    answer = {"usage": OPENAI | {"prompt_tokens_details": details}}
    assert read_body(Api.CHAT, json.dumps(answer).encode()).usage == Usage(31, 2)


@pytest.mark.parametrize("api", Api)
def test_what_is_null_or_missing_is_nothing(api: Api) -> None:
    nulls = json.dumps(dict.fromkeys(UsageFields.__struct_fields__))
    assert msgspec.json.decode(nulls, type=UsageFields).read(api) == UsageFields().read(api) == Usage(0, 0)


@pytest.mark.parametrize("wrong", [-1, 2**31, 10**400], ids=["negative", "2**31", "400 digits"])
@pytest.mark.parametrize("api", Api)
def test_what_cannot_be_was_not_counted(api: Api, wrong: int) -> None:
    answer = {"usage": dict.fromkeys(UsageFields.__struct_fields__, wrong)}
    assert read_body(api, json.dumps(answer).encode()).usage is None
    reader = StreamReader(api, strip_usage=False)
    for choices in ([], [{"index": 0}]):
        event = json.dumps({"choices": choices, "response": answer} | answer, separators=(",", ":"))
        reader.feed(f"event: message_delta\nevent: response.completed\ndata: {event}\n\n".encode())
    assert reader.usage is None
    assert reader.tokens <= 2, "one for each event at most"


@pytest.mark.parametrize("cached", [0, 16])
def test_the_last_word_of_a_streamed_message_counts_not_its_first(cached: int) -> None:
    reader = StreamReader(Api.MESSAGES, strip_usage=False)
    usage = {"input_tokens": 31 - cached, "output_tokens": 2} | ({"cache_read_input_tokens": cached} if cached else {})
    for name, fields in (
        ("message_start", {"message": {"usage": {"input_tokens": 31, "output_tokens": 0}}}),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": usage}),
    ):
        payload = json.dumps({"type": name} | fields, separators=(",", ":"))
        reader.feed(f"event: {name}\ndata: {payload}\n\n".encode())
    assert reader.usage == Usage(31, 2, cached or None)


@pytest.mark.parametrize("last", [{"output_tokens": 2}, {"input_tokens": None, "output_tokens": 2}])
def test_a_prompt_that_only_the_first_event_of_a_message_counts_is_counted(last: dict[str, Any]) -> None:
    """So does a llama-server. Its prompts had no tokens, and after three of them its own counts were doubted."""
    reader = StreamReader(Api.MESSAGES, strip_usage=False)
    first = {"message": {"usage": {"input_tokens": 1, "cache_read_input_tokens": 30, "output_tokens": 0}}}
    for name, fields in (("message_start", first), ("message_delta", {"usage": last})):
        assert reader.usage is None, "what fails or is left before the end is charged by its tokens"
        reader.feed(f"event: {name}\ndata: {json.dumps({'type': name} | fields)}\n\n".encode())
    assert reader.usage == Usage(31, 2, 30)


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
def test_the_count_of_one_choice_so_far_is_not_the_requests(api: Api) -> None:
    """With `continuous_usage_stats` each chunk carries its own prompt's and its own choice's."""
    reader = StreamReader(api, strip_usage=False)
    reader.feed(b'data: {"choices":[{"index":1}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n')
    assert reader.usage is None
    reader.feed(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n')
    assert reader.usage == Usage(7, 4)
