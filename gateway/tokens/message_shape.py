"""The shape of messages for a chat template: the keys each message has, in the engine's order.

The order matters: a template that prints a message as JSON shows it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from gateway.tokens.messages import Json, NeedsEngineError


class ContentFormat(StrEnum):
    """The form of `content` that a template expects."""

    STRING = "string"
    """One text; its parts are joined by a line break."""
    PARTS = "parts"
    """A list of parts, even for a single text (vLLM calls it "openai")."""


BILLING_HEADER = "x-anthropic-billing-header"
"""Start of the line that Claude Code puts before a system prompt; the line changes with every request."""

# Keys of any content part vLLM knows (vllm 0.32, renderers/chat_utils.py). Every other key of a text part reaches
# the template, such as `cache_control`.
_KNOWN_PART_KEYS = frozenset(
    {
        "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
        "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
    }
)  # fmt: skip

_TEXT_KEYS = {"thinking": "thinking", "refusal": "refusal", "tool_reference": "name"}


def conversation(messages: Iterable[Json], content_format: ContentFormat) -> list[Json]:
    """Well-formed messages, in the form the template gets.

    Raises:
        NeedsEngineError: a part is not text, or a tool call's arguments are nested too deeply to read, or hold a number
            that is too long.
    """
    return [_shape(message, content_format) for message in messages]


def fold_developer(messages: Sequence[Json]) -> list[Json]:
    """Turn developer messages into system messages, for a template that does not know the role `developer`.

    If there are then several system messages, or one comes late, all are merged into one at the front.
    """
    renamed = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    systems = [index for index, message in enumerate(renamed) if message["role"] == "system"]
    if systems in ([], [0]):
        return renamed
    texts = [_joined(renamed[index]["content"]) for index in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _shape(message: Json, content_format: ContentFormat) -> Json:
    role = message["role"]
    parts = _parts(message.get("content"))
    if role == "system":
        parts = _without_billing_header(parts)
    shaped: Json = {"role": role, "content": _content(role, parts, content_format)}
    if role == "assistant":
        if message.get("tool_calls"):
            shaped["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            shaped["reasoning"] = message["reasoning"]
            shaped["reasoning_content"] = message["reasoning"]
    elif role == "tool" and "tool_call_id" in message:
        shaped["tool_call_id"] = message["tool_call_id"]
    for key in ("name", "task"):
        if key in message:
            shaped[key] = message[key]
    if role == "developer":
        shaped["tools"] = None
    return shaped


def _parts(content: str | list[Json] | None) -> list[Json]:
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _without_billing_header(parts: Iterable[Json]) -> list[Json]:
    kept = []
    for part in parts:
        text = part.get("text")
        if isinstance(text, str) and text.startswith(BILLING_HEADER):
            rest = text.partition("\n")[2]
            if not rest:
                continue
            part = part | {"text": rest}  # noqa: PLW2901
        kept.append(part)
    return kept


def _content(role: str, parts: Sequence[Json], content_format: ContentFormat) -> str | list[Json]:
    if content_format is ContentFormat.STRING:
        return "\n".join(text for part in parts if (text := _text(part)))
    shaped = [_part(part) for part in parts]
    if role == "tool" and all(part["type"] == "text" for part in shaped):
        return "\n".join(part["text"] for part in shaped)
    return shaped


def _text(part: Mapping[str, Any]) -> str:
    text = part.get(_TEXT_KEYS.get(part["type"], "text"))
    if not isinstance(text, str):
        raise NeedsEngineError("a content part is not text")
    return text


def _part(part: Mapping[str, Any]) -> Json:
    if part["type"] == "tool_reference":
        return {"type": "tool_reference", "name": part["name"]}
    extra = {key: value for key, value in part.items() if key not in _KNOWN_PART_KEYS}
    return {"type": "text", "text": _text(part)} | extra


def _tool_call(call: Mapping[str, Any]) -> Json:
    function = call["function"]
    return {**call, "function": function | {"arguments": _arguments(function["arguments"])}}


def _arguments(arguments: str) -> Json:
    """Arguments as an object. Anything but a JSON object counts as an empty one, as in the engine."""
    try:
        parsed = json.loads(arguments) if arguments else {}
    except json.JSONDecodeError:
        return {}
    except (ValueError, RecursionError):  # more digits than Python converts
        raise NeedsEngineError("a tool call's arguments cannot be read") from None
    return parsed if isinstance(parsed, dict) else {}


def _joined(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
