import json
from typing import Any

import pytest

from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.normalise import Encoding, batched, chat_prompt, text_prompt, tool_definitions
from gateway.wire.request import InvalidRequestError

USER = {"role": "user", "content": "Hi."}


def variables(**fields: Any) -> dict[str, Any]:
    return chat_prompt({"messages": [USER]} | fields).template_kwargs


FLAGS = {"add_generation_prompt": True, "continue_final_message": False}


def test_a_chat_ends_in_a_generation_prompt_and_adds_no_special_tokens() -> None:
    prompt = chat_prompt({"messages": [USER]})
    assert prompt.template_kwargs == FLAGS
    assert prompt.encoding == Encoding(add_special_tokens=False)
    assert prompt.tools is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "high", "enable_thinking": False},
        ),
        ({"reasoning_effort": None, "chat_template_kwargs": {"reasoning_effort": "x"}}, {"reasoning_effort": "x"}),
        ({"documents": [{"text": "A."}], "chat_template_kwargs": {"documents": []}}, {"documents": [{"text": "A."}]}),
        ({"chat_template_kwargs": {"documents": [1]}}, {"documents": [1]}),
        (
            {"chat_template_kwargs": {"a": None, "b": "auto", "c": 0, "d": False, "e": ""}},
            {"c": 0, "d": False, "e": ""},
        ),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, {}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
    ],
)
def test_what_a_template_sees_of_a_request(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert variables(**fields) == FLAGS | expected


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"tools": []}},
        {"chat_template_kwargs": [1]},
        {"reasoning_effort": "immense"},
        {"documents": [{"text": 1}]},
        {"documents": "text"},
        {"add_generation_prompt": "perhaps"},
        {"add_special_tokens": 2},
        {"tools": []},
        {"tools": {}},
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": 1.5},
        {"messages": [{"role": "user", "content": None}]},
    ],
)
def test_what_only_the_engine_can_judge_is_left_to_it(fields: dict[str, Any]) -> None:
    with pytest.raises(NeedsEngineError):
        chat_prompt({"messages": [USER]} | fields)


@pytest.mark.parametrize("fields", [{}, {"messages": None}, {"messages": "Hi."}])
def test_a_chat_without_messages_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_prompt(fields)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("tool", "written"),
    [
        (
            {"function": {"parameters": {"b": 1, "a": 2}, "x": 1, "name": "f"}, "y": 1},
            {"type": "function", "function": {"name": "f", "description": None, "parameters": {"b": 1, "a": 2}}},
        ),
        (
            {"function": {"name": "f", "strict": False, "description": "D."}, "type": "function"},
            {"type": "function", "function": {"name": "f", "description": "D.", "parameters": None, "strict": False}},
        ),
        (
            {"function": {"name": "f", "strict": None}, "defer_loading": True},
            {
                "type": "function",
                "function": {"name": "f", "description": None, "parameters": None, "defer_loading": True},
                "defer_loading": True,
            },
        ),
        (
            {"function": {"name": "f", "defer_loading": False}, "defer_loading": None},
            {
                "type": "function",
                "function": {"name": "f", "description": None, "parameters": None, "defer_loading": False},
            },
        ),
    ],
)
def test_tools_are_written_as_the_engine_writes_them(tool: dict[str, Any], written: dict[str, Any]) -> None:
    assert json.dumps(tool_definitions([tool])) == json.dumps([written])


def test_what_a_tool_says_loosely_is_read_as_the_engine_reads_it() -> None:
    loose = {"function": {"name": "f", "strict": "yes", "defer_loading": 0}, "defer_loading": "on"}
    plain = {"function": {"name": "f", "strict": True, "defer_loading": False}, "defer_loading": True}
    assert tool_definitions([loose]) == tool_definitions([plain])


@pytest.mark.parametrize(
    "tool",
    [
        "f",
        {},
        {"function": {}},
        {"function": {"name": 1}},
        {"type": "web_search", "function": {"name": "f"}},
        {"function": {"name": "f", "parameters": "{}"}},
        {"function": {"name": "f", "strict": "maybe"}},
        {"function": {"name": "f", "defer_loading": 2}},
        {"function": {"name": "f"}, "defer_loading": []},
    ],
)
def test_odd_tools_are_left_to_the_engine(tool: Any) -> None:
    with pytest.raises(NeedsEngineError):
        tool_definitions([tool])


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi.", ("Hi.",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3], ([1, 2, 3],)),
        ([[1, 2], [3]], ([1, 2], [3])),
    ],
)
def test_prompts_of_completions(prompt: Any, prompts: tuple[str | list[int], ...]) -> None:
    assert text_prompt({"prompt": prompt}).prompts == prompts


@pytest.mark.parametrize("prompt", [None, [], {}, 5, ["a", 1], [[]], [["a"]], [None]])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError):
        text_prompt({"prompt": prompt})


def test_a_batch_is_a_chat_request_of_each_conversation_without_tools() -> None:
    shared = {"reasoning_effort": "low", "documents": [{"text": "A."}], "add_special_tokens": True, "max_tokens": 5}
    assert batched(shared | {"messages": [[USER], [USER, USER]], "tools": [{}]}) == [
        chat_prompt(shared | {"messages": [USER]}),
        chat_prompt(shared | {"messages": [USER, USER]}),
    ]


def test_what_the_conversations_of_a_batch_share_is_in_memory_once() -> None:
    one, other = batched({"messages": [[USER], [USER]], "chat_template_kwargs": {"flavour": "sweet"}})
    assert one.template_kwargs is other.template_kwargs


def test_a_batch_of_what_is_no_conversation_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        batched({"messages": [[USER], "x"]})


@pytest.mark.parametrize("conversations", [None, [], {}, "x"])
def test_a_batch_without_conversations_is_refused(conversations: Any) -> None:
    with pytest.raises(InvalidRequestError):
        batched({"messages": conversations})


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"truncate_prompt_tokens": 5}, 5),
        ({"truncate_prompt_tokens": -1}, 99),
        ({"truncate_prompt_tokens": -1, "max_tokens": 0}, 100),
        ({"truncate_prompt_tokens": -1, "max_tokens": "0"}, 100),
        ({"truncate_prompt_tokens": -1, "max_tokens": None}, 99),
    ],
)
def test_truncation_leaves_room_where_output_was_asked_for(fields: dict[str, Any], most: int | None) -> None:
    assert text_prompt({"prompt": "Hi."} | fields).encoding.most_tokens(100) == most


def test_max_completion_tokens_is_an_output_budget_too() -> None:
    fields = {"messages": [USER], "truncate_prompt_tokens": -1, "max_completion_tokens": 5}
    assert chat_prompt(fields).encoding.most_tokens(100) == 99
