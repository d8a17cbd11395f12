"""The conversion of Messages API requests into chat prompts, as vLLM 0.32 does it before templating."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tokens.message_shape import BILLING_HEADER
from gateway.tokens.messages import Json, NeedsEngineError, well_formed
from gateway.tokens.normalise import ChatPrompt, Encoding, function_definition, template_kwargs
from gateway.wire.request import InvalidRequestError

_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
_BLOCKS = {
    "user": frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}


def from_messages(fields: Mapping[str, Any]) -> ChatPrompt:
    """The chat prompt that `/v1/messages` makes of its decoded body.

    Raises:
        NeedsEngineError: it holds more than text, thinking, tool uses and their results as text.
        InvalidRequestError: it has no messages.
    """
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequestError("messages: expected a list", "messages")
    converted: list[Json] = []
    if system := _system(fields.get("system")):
        converted.append({"role": "system", "content": system})
    for message in messages:
        converted += _message(message)
    return ChatPrompt(
        messages=[well_formed(message) for message in converted],
        tools=_tools(fields.get("tools")),
        template_kwargs=template_kwargs(
            fields.get("chat_template_kwargs"),
            add_generation_prompt=True,
            continue_final_message=False,
            reasoning_effort=_effort(fields),
        ),
        encoding=Encoding(add_special_tokens=False, output_budget=True),
    )


def _system(system: Any) -> str:
    if isinstance(system, str | None):
        return system or ""
    texts = []
    for block in _blocks(system):
        if block.get("type") != "text" or not isinstance(block.get("text"), str | None):
            raise NeedsEngineError("the system prompt is not text")
        text = block.get("text")
        if text and not text.startswith(BILLING_HEADER):
            texts.append(text)
    return "".join(texts)


def _message(message: Any) -> list[Json]:
    """One message, after the tool results it brings; each result becomes a message of its own."""
    role = message.get("role") if isinstance(message, dict) else None
    # The engine probes its template to decide whether an inline system message is merged or stays.
    if role not in ("user", "assistant"):
        raise NeedsEngineError("a message is not from the user or the assistant")
    if isinstance(message.get("content"), str):
        return [{"role": role, "content": message["content"]}]
    blocks = _blocks(message.get("content"))
    if not all(isinstance(kind := block.get("type"), str) and kind in _BLOCKS[role] for block in blocks):
        raise NeedsEngineError("a message holds a block that is not text, thinking or tool use")
    of = {kind: [block for block in blocks if block["type"] == kind] for kind in _BLOCKS[role]}
    converted: Json = {"role": role}
    if of["thinking"]:
        converted["reasoning"] = "".join(_text(block, "thinking") for block in of["thinking"])
    if of["tool_use"]:
        converted["tool_calls"] = [_tool_use(block) for block in of["tool_use"]]
    if texts := [text for block in of["text"] if (text := _text(block, "text"))]:
        converted["content"] = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    if role == "assistant":
        return [converted]
    results = [_tool_result(block) for block in of["tool_result"]]
    return [*results, converted] if "content" in converted else results


def _tool_use(block: Json) -> Json:
    if not isinstance(block.get("id"), str) or not block["id"] or not isinstance(block.get("input"), dict | None):
        raise NeedsEngineError("a tool use is not well formed")
    function = {"name": _text(block, "name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _tool_result(block: Json) -> Json:
    content = block.get("content")
    if not isinstance(content, str | None):
        items = _blocks(content)
        if any(item.get("type") != "text" for item in items):
            raise NeedsEngineError("a tool result is not text")
        content = "\n".join(_text(item, "text") for item in items)
    return {"role": "tool", "tool_call_id": _text(block, "tool_use_id"), "content": content or ""}


def _tools(tools: Any) -> list[Json] | None:
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise NeedsEngineError("tools is not a filled list")
    definitions = []
    for tool in tools:
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict):
            raise NeedsEngineError("a tool has no input_schema")
        function = {key: tool.get(key) for key in ("name", "description", "strict", "defer_loading")}
        function["parameters"] = schema if "type" in schema else schema | {"type": "object"}
        definitions.append({"type": "function", "function": function_definition(function)})
    return definitions


def _effort(fields: Mapping[str, Any]) -> str | None:
    thinking = fields.get("thinking")
    if thinking is not None and (not isinstance(thinking, dict) or thinking.get("type") == "disabled"):
        # The engine finds out by trying how its template is told not to think.
        raise NeedsEngineError("thinking is switched off")
    config = fields.get("output_config")
    if config is None:
        return None
    effort = config.get("effort") if isinstance(config, dict) else ""
    if effort is not None and not (isinstance(effort, str) and effort in _EFFORTS):
        raise NeedsEngineError("output_config is not well formed")
    return effort


def _blocks(content: Any) -> Sequence[Json]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise NeedsEngineError("content is neither text nor blocks")
    return content


def _text(block: Json, key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise NeedsEngineError(f"a block has no {key}")
    return value
