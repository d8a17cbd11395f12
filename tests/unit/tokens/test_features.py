from typing import Any

import pytest

from gateway.tokens.features import Feature, features
from gateway.tokens.normalise import chat_prompt, text_prompt

USER = {"role": "user", "content": "Hi."}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_an_ordinary_request_brings_a_prompt_and_nothing_else() -> None:
    plain = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Hi."}, USER]
    assert features(chat_prompt({"messages": plain})) == {Feature.PROMPT}
    assert features(text_prompt({"prompt": "Hi."})) == {Feature.PROMPT}


@pytest.mark.parametrize(
    ("fields", "feature"),
    [
        ({"tools": [{"function": {"name": "f"}}]}, Feature.TOOLS),
        ({"documents": [{"text": "A."}]}, Feature.DOCUMENTS),
        ({"add_special_tokens": True}, Feature.SPECIAL_TOKENS),
        ({"add_generation_prompt": False, "continue_final_message": True}, Feature.CONTINUED),
        ({"truncate_prompt_tokens": 5}, Feature.TRUNCATION),
        ({"chat_template_kwargs": {"thinking": True}}, Feature.VARIABLES),
        ({"messages": [{"role": "developer", "content": "Hi."}]}, Feature.DEVELOPER),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]}, Feature.PARTS),
        ({"messages": [{"role": "assistant", "reasoning_content": "Hm."}]}, Feature.REASONING),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, Feature.TOOL_CALLS),
        ({"messages": [{"role": "tool", "content": "1"}]}, Feature.TOOL_CALLS),
        ({"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1"}]}, Feature.HEADER),
    ],
)
def test_what_a_request_brings_is_found(fields: dict[str, Any], feature: Feature) -> None:
    assert features(chat_prompt({"messages": [USER]} | fields)) == {Feature.PROMPT, feature}


def test_effort_also_sets_a_variable() -> None:
    prompt = chat_prompt({"messages": [USER], "reasoning_effort": "low"})
    assert features(prompt) == {Feature.PROMPT, Feature.EFFORT, Feature.VARIABLES}
