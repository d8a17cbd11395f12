from typing import Any

import pytest

from gateway.tokens.message_shape import ContentFormat, conversation, fold_developer
from gateway.tokens.messages import NeedsEngineError

STRING, PARTS = ContentFormat.STRING, ContentFormat.PARTS


def shaped(message: dict[str, Any], content_format: ContentFormat = STRING) -> dict[str, Any]:
    return conversation([message], content_format)[0]


@pytest.mark.parametrize(
    ("content", "string", "parts"),
    [
        ("Hi.", "Hi.", [{"type": "text", "text": "Hi."}]),
        (None, "", []),
        ([], "", []),
        (
            [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}],
            "a\nb",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        (
            [{"type": "text", "text": ""}, {"type": "text", "text": "b"}],
            "b",
            [{"type": "text", "text": ""}, {"type": "text", "text": "b"}],
        ),
        ([{"type": "refusal", "refusal": "No."}], "No.", [{"type": "text", "text": "No."}]),
        (
            [{"cache_control": 1, "type": "text", "text": "a", "uuid": None}],
            "a",
            [{"type": "text", "text": "a", "cache_control": 1}],
        ),
    ],
)
def test_content_takes_the_shape_the_template_expects(content: Any, string: str, parts: list[Any]) -> None:
    message = {"role": "user", "content": content}
    assert shaped(message, STRING) == {"role": "user", "content": string}
    assert shaped(message, PARTS) == {"role": "user", "content": parts}


def test_thinking_is_text_to_a_template() -> None:
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]
    assert shaped({"role": "assistant", "content": content})["content"] == "Hm.\nYes."


def test_a_tools_result_is_a_string_for_every_template() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert shaped({"role": "tool", "content": content}, PARTS)["content"] == "a\nb"


def test_tool_references_stay_parts() -> None:
    content = [{"type": "tool_reference", "name": "f", "x": 1}, {"type": "text", "text": "b"}]
    message = {"role": "tool", "content": content}
    assert shaped(message, PARTS)["content"] == [{"type": "tool_reference", "name": "f"}, {"type": "text", "text": "b"}]
    assert shaped(message, STRING)["content"] == "f\nb"


@pytest.mark.parametrize("arguments", ["", "{", "[]", "5", "null", '"text"'])
def test_arguments_that_are_no_object_are_an_empty_one(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = shaped({"role": "assistant", "content": "", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": ' + "1" * 5000 + "}"], ids=["nested", "a long number"])
def test_arguments_beyond_reading_are_the_engines_matter(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(NeedsEngineError):
        shaped({"role": "assistant", "content": "", "tool_calls": [call]})


def test_an_empty_list_of_calls_is_no_list() -> None:
    assert "tool_calls" not in shaped({"role": "assistant", "content": "Hi.", "tool_calls": []})


def test_reasoning_has_both_names_and_belongs_to_the_assistant() -> None:
    said = {"content": "4", "reasoning": "2 and 2"}
    assert shaped({"role": "assistant"} | said) == {"role": "assistant", "content": "4"} | {
        "reasoning": "2 and 2",
        "reasoning_content": "2 and 2",
    }
    assert shaped({"role": "user"} | said) == {"role": "user", "content": "4"}


def test_of_other_keys_only_those_the_engine_names_reach_the_template() -> None:
    message = {
        "role": "tool",
        "content": "1",
        "name": "f",
        "task": "t",
        "tool_call_id": "c",
        "weight": 1,
        "refusal": "n",
    }
    assert shaped(message) == {"role": "tool", "content": "1", "tool_call_id": "c", "name": "f", "task": "t"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x-anthropic-billing-header: cch=1;", ""),
        ("x-anthropic-billing-header: cch=1;\nBe brief.", "Be brief."),
        ("Be brief.\nx-anthropic-billing-header: cch=1;", "Be brief.\nx-anthropic-billing-header: cch=1;"),
    ],
)
def test_the_billing_header_is_no_part_of_a_system_prompt(text: str, left: str) -> None:
    assert shaped({"role": "system", "content": text})["content"] == left
    assert shaped({"role": "system", "content": [{"type": "text", "text": text}]})["content"] == left
    assert shaped({"role": "user", "content": text})["content"] == text


def test_developers_become_the_first_and_only_system_message() -> None:
    messages = conversation(
        [
            {"role": "system", "content": "A."},
            {"role": "user", "content": "Hi."},
            {"role": "developer", "content": [{"type": "text", "text": "B."}, {"type": "text", "text": "C."}]},
            {"role": "system", "content": ""},
        ],
        PARTS,
    )
    assert fold_developer(messages) == [
        {"role": "system", "content": "A.\n\nB.\nC."},
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
    ]


def test_a_developer_who_speaks_first_keeps_the_shape_of_the_content() -> None:
    messages = conversation([{"role": "developer", "content": "B."}, {"role": "user", "content": "Hi."}], PARTS)
    assert messages[0] == {"role": "developer", "content": [{"type": "text", "text": "B."}], "tools": None}
    assert fold_developer(messages)[0] == {"role": "system", "content": [{"type": "text", "text": "B."}]}
