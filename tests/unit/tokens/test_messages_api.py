from typing import Any

import pytest

from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.messages_api import from_messages
from gateway.wire.request import InvalidRequestError

USER = {"role": "user", "content": "Hi."}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "t1",
    "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
}
HEADER = "x-anthropic-billing-header: 1"


def messages(*given: Any, **fields: Any) -> list[dict[str, Any]]:
    return list(from_messages({"messages": list(given)} | fields).messages)


def test_system_blocks_are_one_text_without_the_billing_header() -> None:
    blocks = [{"type": "text", "text": HEADER}, {"type": "text", "text": "A."}, {"type": "text", "text": "B."}]
    assert messages(USER, system=blocks) == [{"role": "system", "content": "A.B."}, USER]
    assert messages(USER, system="A.") == [{"role": "system", "content": "A."}, USER]
    assert messages(USER, system=[blocks[0]]) == [USER]


def test_results_come_before_the_users_text() -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "Well?"}, RESULT]}
    assert messages(turn) == [
        {"role": "tool", "tool_call_id": "t1", "content": "1\n2"},
        {"role": "user", "content": "Well?"},
    ]
    assert messages({"role": "user", "content": [RESULT]}) == [
        {"role": "tool", "tool_call_id": "t1", "content": "1\n2"}
    ]


def test_an_assistants_blocks_are_one_message() -> None:
    turn = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "A"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "thinking", "thinking": "B"},
            {"type": "text", "text": "C", "cache_control": {}},
            USE,
        ],
    }
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert messages(turn) == [{"role": "assistant", "reasoning": "AB", "tool_calls": [call], "content": "C"}]


def test_several_texts_stay_parts() -> None:
    text = {"type": "text", "text": "A"}
    assert messages({"role": "user", "content": [text, {"type": "text", "text": ""}, text]}) == [
        {"role": "user", "content": [text, text]}
    ]


def test_schemas_without_a_type_are_objects() -> None:
    tools = from_messages({"messages": [USER], "tools": [{"name": "f", "input_schema": {"properties": {}}}]}).tools
    function = {"name": "f", "description": None, "parameters": {"properties": {}, "type": "object"}}
    assert tools == [{"type": "function", "function": function}]


def test_the_keys_of_a_schema_keep_their_order() -> None:
    schema = {"properties": {}, "required": [], "type": "object"}
    tools = from_messages({"messages": [USER], "tools": [{"name": "f", "input_schema": schema}]}).tools
    assert tools is not None
    assert list(tools[0]["function"]["parameters"]) == ["properties", "required", "type"]


def test_effort_reaches_the_template() -> None:
    kwargs = from_messages({"messages": [USER], "output_config": {"effort": "low"}}).template_kwargs
    assert kwargs["reasoning_effort"] == "low"
    assert kwargs["enable_thinking"] is True


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "immense"}},
        {"output_config": 5},
        {"system": [{"type": "image"}]},
        {"system": 5},
        {"tools": []},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"messages": [{"role": "system", "content": "A."}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [RESULT | {"content": [{"type": "image"}]}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "A"}]}]},
        {"messages": [{"role": "assistant", "content": [RESULT]}]},
        {"messages": [{"role": "assistant", "content": [USE | {"id": ""}]}]},
        {"messages": [{"role": "assistant", "content": [USE | {"input": "{}"}]}]},
        {"messages": ["Hi."]},
    ],
)
def test_what_the_engine_converts_by_rules_of_its_own_is_left_to_it(fields: dict[str, Any]) -> None:
    with pytest.raises(NeedsEngineError):
        from_messages({"messages": [USER]} | fields)


def test_a_request_without_messages_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        from_messages({"system": "A."})
