from typing import Any

import pytest

from gateway.tokens.messages import Json, NotCountableError
from gateway.tokens.responses_api import from_responses
from gateway.wire.request import InvalidRequestError

USER = {"role": "user", "content": "Hi."}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "1"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
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


def test_an_assistants_empty_list_is_a_message_of_its_own() -> None:
    empty = {"role": "assistant", "content": []}
    assert messages([CALL, empty, THOUGHT]) == [
        {"role": "assistant", "tool_calls": [CALLED]},
        empty | {"reasoning": "Hm."},
    ]


def test_input_texts_are_texts() -> None:
    part = {"type": "input_text", "text": "Hi."}
    assert messages([{"role": "user", "content": [part]}]) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]}
    ]


def test_reasoning_is_the_first_part_of_its_content_or_else_of_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "In short."}, {"type": "summary_text", "text": "And more."}]
    assert messages([THOUGHT | {"summary": summary}]) == [{"role": "assistant", "reasoning": "Hm."}]
    assert messages([THOUGHT | {"content": None, "summary": summary}]) == [
        {"role": "assistant", "reasoning": "In short."}
    ]
    assert messages([THOUGHT | {"content": []}]) == [{"role": "assistant", "reasoning": ""}]


def test_reasoning_text_and_calls_of_an_assistant_are_one_message_until_one_comes_twice() -> None:
    said = {"role": "assistant", "content": "A"}
    assert messages([USER, THOUGHT, CALL, said, OUTPUT]) == [
        USER,
        {"role": "assistant", "reasoning": "Hm.", "tool_calls": [CALLED], "content": "A"},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]
    assert messages([said, THOUGHT, THOUGHT]) == [
        said | {"reasoning": "Hm."},
        {"role": "assistant", "reasoning": "Hm."},
    ]


@pytest.mark.parametrize("item", [USER, {"role": "assistant", "content": "It is"}, THOUGHT])
def test_what_is_unfinished_at_the_end_is_continued(item: dict[str, Any]) -> None:
    unfinished = item | {"status": "incomplete"}
    kwargs = from_responses({"input": [USER, unfinished]}).template_kwargs
    assert kwargs == {"add_generation_prompt": False, "continue_final_message": True}
    kwargs = from_responses({"input": [unfinished, USER]}).template_kwargs
    assert kwargs == {"add_generation_prompt": True, "continue_final_message": False}


def test_an_unfinished_call_is_not_continued() -> None:
    assert not from_responses({"input": [CALL | {"status": "incomplete"}]}).template_kwargs["continue_final_message"]


def test_calls_of_custom_tools_bring_their_text_as_an_argument() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": 'a "b" ü'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]}
    function = {"name": "f", "arguments": '{"input": "a \\"b\\" ü"}'}
    assert messages([call, output]) == [
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": function, "type": "function"}]},
        {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c1"},
    ]


def test_a_namespace_is_a_part_of_its_functions_names() -> None:
    (message,) = messages([CALL | {"namespace": "n"}])
    assert message["tool_calls"][0]["function"]["name"] == "n__f"
    inner = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    assert tool_names([{"type": "namespace", "name": "n", "tools": inner}]) == ["n__f"]


def test_tools_are_shown_as_functions_or_not_at_all() -> None:
    function = {"type": "function", "name": "f"}
    assert tool_names([{"type": "web_search"}, function, {"type": "custom", "name": "c"}]) == ["f", "c"]
    assert tool_names([{"type": "web_search"}]) == []
    assert from_responses({"input": "Hi.", "tools": []}).tools is None


def tool_names(tools: list[dict[str, Any]]) -> list[str]:
    shown = from_responses({"input": "Hi.", "tools": tools}).tools
    assert shown is not None
    return [tool["function"]["name"] for tool in shown]


def test_truncation_is_off_unless_asked_for() -> None:
    assert from_responses({"input": "Hi."}).encoding.most_tokens(100) is None
    assert from_responses({"input": "Hi.", "truncation": "auto"}).encoding.most_tokens(100) == 100
    assert (
        from_responses({"input": "Hi.", "truncation": "auto", "max_output_tokens": 5}).encoding.most_tokens(100) == 99
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": 5},
        {"reasoning": "low"},
        {"reasoning": {"effort": "immense"}},
        {"tools": [{"type": "namespace", "name": "n", "tools": None}]},
        {"tools": [{"type": "function", "name": 5}]},
        {"tools": "f"},
        {"input": ["Hi."]},
        {"input": [THOUGHT | {"encrypted_content": "x"}]},
        {"input": [THOUGHT | {"summary": None}]},
        {"input": [THOUGHT | {"content": [{"type": "text", "text": "Hm."}]}]},
        {"input": [THOUGHT | {"content": "Hm."}]},
        {"input": [THOUGHT | {"id": None}]},
        {"input": [{"type": "web_search_call", "id": "w"}]},
        {"input": [{"role": "system", "content": [{"type": "input_text", "text": "x-anthropic-billing-header: 1"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "data:"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]},
        {"input": [{"role": "critic", "content": "Hi."}]},
        {"input": [CALL | {"namespace": 5}]},
        {"input": [CALL | {"arguments": {}}]},
        {"input": [OUTPUT | {"output": [{"type": "input_image"}]}]},
        {"input": [OUTPUT | {"call_id": None}]},
        {"input": [{"role": "assistant", "content": [], "reasoning": "Hm."}]},
        {"input": "Hi.", "chat_template_kwargs": {"enable_thinking": None}},
        {"input": "Hi.", "chat_template_kwargs": {"enable_thinking": "auto"}},
    ],
)
def test_what_cannot_be_converted_exactly_is_said_to_be(fields: dict[str, Any]) -> None:
    with pytest.raises(NotCountableError):
        from_responses({"input": "Hi."} | fields)


@pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": 5}])
def test_a_request_without_input_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        from_responses(fields)


FUNCTION = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "namespace", "name": "n" * 10_000, "tools": [FUNCTION] * 10_000}],
        [{"type": "namespace", "name": "n" * 1000, "tools": [FUNCTION] * 1000}] * 10,
        [{"type": "custom", "name": "c"}] * 10_000,
    ],
)
def test_tools_that_would_become_much_larger_are_refused(tools: list[Json]) -> None:
    with pytest.raises(InvalidRequestError, match="too many tools"):
        from_responses({"input": "Hi.", "tools": tools})
    assert from_responses({"input": "Hi.", "tools": [FUNCTION] * 10_000}).tools


def test_a_message_that_is_passed_on_keeps_its_name() -> None:
    named = {"role": "user", "content": "Hi.", "name": "bob", "task": "chat"}
    said = {"role": "assistant", "content": "Hello.", "name": "bob"}
    prompt = from_responses({"input": [named | {"id": "m1"}, {"role": "user", "content": "Hi.", "name": None}, said]})
    plain = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    assert prompt.messages == [named, *plain]
