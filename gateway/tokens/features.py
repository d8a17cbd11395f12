"""The features of a request that engines turn into different prompts, by their version and settings."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from gateway.tokens.message_shape import BILLING_HEADER
from gateway.tokens.normalise import ChatPrompt, TextPrompt
from gateway.wire.request import Api


class Feature(StrEnum):
    """A feature of a request. If an engine differs from us in one, the engine counts the requests that bring it."""

    PROMPT = "prompt"
    """Every request brings this feature."""
    CONTINUED = "continue_final_message"
    DEVELOPER = "developer"
    DOCUMENTS = "documents"
    EFFORT = "reasoning_effort"
    HEADER = "billing_header"
    PARTS = "content_parts"
    REASONING = "reasoning"
    SPECIAL_TOKENS = "add_special_tokens"
    TOOLS = "tools"
    TOOL_CALLS = "tool_calls"
    TRUNCATION = "truncate_prompt_tokens"
    UNUSED_TOOLS = "tool_choice_none"
    """Tools that the model may not use. `--exclude-tools-when-tool-choice-none` leaves them out."""
    VARIABLES = "chat_template_kwargs"


ALL = frozenset(Feature)


class Kind(msgspec.Struct, frozen=True):
    """The kind of a request; of low cardinality."""

    api: Api
    features: frozenset[Feature] = frozenset({Feature.PROMPT})

    def __str__(self) -> str:
        """As logs name it: `chat+tools`."""
        return "+".join([self.api, *sorted(self.features - {Feature.PROMPT})])


_FLAGS = {"add_generation_prompt", "continue_final_message"}
_OWN_FIELDS = {"documents": Feature.DOCUMENTS, "reasoning_effort": Feature.EFFORT}


def features(prompt: ChatPrompt | TextPrompt) -> frozenset[Feature]:
    """The features a request brings."""
    found = {Feature.PROMPT}
    if prompt.encoding.truncate is not None:
        found.add(Feature.TRUNCATION)
    if isinstance(prompt, TextPrompt):
        return frozenset(found)
    if prompt.tools is not None:
        found.add(Feature.TOOLS)
    if prompt.encoding.add_special_tokens:
        found.add(Feature.SPECIAL_TOKENS)
    if prompt.template_kwargs.get("continue_final_message"):
        found.add(Feature.CONTINUED)
    found |= {_OWN_FIELDS.get(name, Feature.VARIABLES) for name in prompt.template_kwargs.keys() - _FLAGS}
    for message in prompt.messages:
        found |= _of_message(message)
    return frozenset(found)


def _of_message(message: Mapping[str, Any]) -> set[Feature]:
    found = set()
    content = message.get("content")
    if message["role"] == "developer":
        found.add(Feature.DEVELOPER)
    if message["role"] == "system" and _has_header(content):
        found.add(Feature.HEADER)
    if isinstance(content, list):
        found.add(Feature.PARTS)
    if message.get("reasoning") is not None:
        found.add(Feature.REASONING)
    if message["role"] == "tool" or message.get("tool_calls"):
        found.add(Feature.TOOL_CALLS)
    return found


def _has_header(content: Any) -> bool:
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
    return any(isinstance(text, str) and text.startswith(BILLING_HEADER) for text in texts)
