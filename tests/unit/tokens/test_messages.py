import json
from typing import Any

import pytest

from gateway.tokens.messages import NeedsEngineError, well_formed

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "Hi."},
        {"role": "user", "content": "Hi.", "name": "bob", "unknown": 1},
        {"role": "user"},
        {"role": "system", "content": [{"type": "text", "text": "Hi.", "cache_control": {}}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi.", "prompt_cache_breakpoint": {"mode": "explicit"}}]},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "refusal", "refusal": "No."}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_reference", "name": "f"}]},
        {"role": "ipython", "content": "1"},
    ],
)
def test_messages_of_openais_api_pass_as_they_are(message: dict[str, Any]) -> None:
    assert well_formed(message) == message


def test_reasoning_has_one_name() -> None:
    assert well_formed({"role": "assistant", "reasoning_content": "Hm."}) == {"role": "assistant", "reasoning": "Hm."}
    both = {"role": "assistant", "reasoning": "New.", "reasoning_content": "Old."}
    assert well_formed(both) == {"role": "assistant", "reasoning": "New."}


def test_the_clients_message_is_left_alone() -> None:
    message = {"role": "assistant", "reasoning_content": "Hm."}
    well_formed(message)
    assert message == {"role": "assistant", "reasoning_content": "Hm."}


@pytest.mark.parametrize(
    "message",
    [
        "Hi.",
        {"content": "Hi."},
        {"role": 1, "content": "Hi."},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": "Hi.", "author": "bob"},
        {"role": "user", "content": "Hi.", "name": None},
        {"role": "user", "content": ["Hi."]},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "user", "content": [{"type": ["text"], "text": "Hi."}]},
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi.", "uuid": "u"}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi.", "prompt_cache_breakpoint": True}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "closed": "maybe"}]},
        {"role": "user", "content": [{"type": "thinking", "thinking": "Hm."}]},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "tool_calls": {}},
        {"role": "assistant", "tool_calls": [CALL | {"id": None}]},
        {"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]},
        {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "1", "tool_calls": [{"id": "c1"}]},
        {"role": "developer", "content": "Hi.", "tools": [{}]},
        {"role": "assistant", "content": "Hi.", "audio": {"id": "a"}},
    ],
)
def test_what_the_engine_may_refuse_is_left_to_it(message: Any) -> None:
    with pytest.raises(NeedsEngineError):
        well_formed(message)


def test_a_reason_holds_no_text_of_the_prompt() -> None:
    with pytest.raises(NeedsEngineError) as caught:
        well_formed({"role": "user", "content": [{"type": "secret", "secret": "my password"}]})
    assert "password" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_calls_are_written_in_the_engines_order() -> None:
    call = {"x": 1, "type": "function", "function": {"y": 2, "name": "f", "arguments": "{}"}, "id": "c"}
    message = well_formed({"role": "assistant", "content": "", "tool_calls": [call]})
    assert json.dumps(message["tool_calls"]) == (
        '[{"id": "c", "function": {"arguments": "{}", "name": "f", "y": 2}, "type": "function", "x": 1}]'
    )
