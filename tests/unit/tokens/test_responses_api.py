from typing import Any

import pytest

from gateway.tokens.messages import NotCountableError
from gateway.tokens.responses_api import from_responses
from gateway.wire.request import InvalidRequestError

USER = {"role": "user", "content": "Hi."}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "1"}
CALLED = {"id": "c1", "function": {"name": "f", "arguments": "{}"}, "type": "function"}


def messages(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return list(from_responses({"input": given} | fields).messages)


def test_a_text_is_the_users() -> None:
    assert messages("Hi.") == [USER]
    assert messages("Hi.", instructions="Be brief.") == [{"role": "system", "content": "Be brief."}, USER]
    assert messages("Hi.", instructions="") == [USER]


def test_special_tokens_are_added_unlike_in_a_chat() -> None:
    assert from_responses({"input": "Hi."}).encoding.add_special_tokens


def test_calls_join_the_assistants_message_before_them() -> None:
    assistant = {"role": "assistant", "content": "Let me see."}
    assert messages([USER, assistant, CALL, CALL, OUTPUT]) == [
        USER,
        assistant | {"tool_calls": [CALLED, CALLED]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]
    assert messages([USER, CALL]) == [USER, {"role": "assistant", "tool_calls": [CALLED]}]


def test_text_after_a_call_joins_its_message() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
    assert messages([CALL, said]) == [{"role": "assistant", "tool_calls": [CALLED], "content": "A"}]
    assert messages([said, said]) == [{"role": "assistant", "content": "A"}] * 2


def test_input_texts_are_texts() -> None:
    part = {"type": "input_text", "text": "Hi."}
    assert messages([{"role": "user", "content": [part]}]) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]}
    ]


def test_truncation_is_off_unless_asked_for() -> None:
    assert from_responses({"input": "Hi."}).encoding.most_tokens(100) is None
    assert from_responses({"input": "Hi.", "truncation": "auto"}).encoding.most_tokens(100) == 100
    assert (
        from_responses({"input": "Hi.", "truncation": "auto", "max_output_tokens": 5}).encoding.most_tokens(100) == 99
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"previous_input_messages": []},
        {"instructions": 5},
        {"reasoning": "low"},
        {"reasoning": {"effort": "immense"}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "name": 5}]},
        {"tools": "f"},
        {"input": ["Hi."]},
        {"input": [USER | {"status": "incomplete"}]},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        {"input": [{"role": "assistant", "content": []}]},
        {"input": [{"role": "critic", "content": "Hi."}]},
        {"input": [CALL | {"namespace": "n"}]},
        {"input": [CALL | {"arguments": {}}]},
        {"input": [OUTPUT | {"output": []}]},
    ],
)
def test_what_cannot_be_converted_exactly_is_said_to_be(fields: dict[str, Any]) -> None:
    with pytest.raises(NotCountableError):
        from_responses({"input": "Hi."} | fields)


@pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": 5}])
def test_a_request_without_input_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        from_responses(fields)
