"""The well-formed chat message: of the messages vLLM 0.32 and 0.33 take, those whose prompt kvgate can reproduce.

Others, such as those with images or audio, are counted by the engine (`engine_count.py`).
"""

from typing import Any

Json = dict[str, Any]


class NeedsEngineError(Exception):
    """Only the engine can count this request; the message says why, without any prompt text."""


class NotCountableError(Exception):
    """Neither we nor a counting route of the engine can count this request exactly; the message says why."""


def well_formed(message: Any) -> Json:
    """A chat message in the form vLLM's request model passes on.

    `reasoning_content` is renamed to `reasoning`, and the keys of a tool call have that model's order: a template that
    prints one as JSON shows it.

    Raises:
        NeedsEngineError: it has parts that are not text, or a shape that OpenAI's API does not define.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "author" in message:
        raise NeedsEngineError("a message is not an object with a role")
    _check_keys(message)
    _check_content(message["role"], message)
    passed_on: Json = {key: value for key, value in message.items() if key != "reasoning_content"}
    if passed_on.get("reasoning") is None and message.get("reasoning_content") is not None:
        passed_on["reasoning"] = message["reasoning_content"]
    if message.get("tool_calls"):
        passed_on["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return passed_on


def _check_keys(message: Json) -> None:
    for key, kind in _OPTIONAL_TYPES.items():
        if not isinstance(message.get(key), kind | None):
            raise NeedsEngineError(f"a message's {key} is of an unexpected type")
    for key in ("name", "tool_call_id", "task"):
        if key in message and message[key] is None:
            raise NeedsEngineError(f"a message's {key} is null")
    for key in ("audio", "function_call", "tools"):
        if message.get(key) is not None:
            raise NeedsEngineError(f"a message brings {key}")


_OPTIONAL_TYPES: dict[str, type] = {
    "name": str,
    "tool_call_id": str,
    "task": str,
    "refusal": str,
    "reasoning": str,
    "reasoning_content": str,
    "tool_calls": list,
}

# The key that holds a part's text, by the part's type. It has the type's own name, except for a tool reference.
_PARTS_OF_ANY_ROLE = {"text": "text"}
_PARTS: dict[str, dict[str, str]] = {
    "user": {"text": "text", "refusal": "refusal"},
    "assistant": {"text": "text", "refusal": "refusal", "thinking": "thinking"},
    "tool": {"text": "text", "tool_reference": "name"},
}

_BREAKPOINT = {"mode": "explicit"}


def _check_content(role: str, message: Json) -> None:
    if "content" not in message:
        return
    content = message["content"]
    if content is None:
        # Null is fine if an assistant only calls tools. In other roles, or with null tool calls, vLLM answers 400.
        if role != "assistant" or ("tool_calls" in message and message["tool_calls"] is None):
            raise NeedsEngineError("a message's content is null")
        return
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise NeedsEngineError("a message's content is neither text nor parts")
    parts = _PARTS.get(role, _PARTS_OF_ANY_ROLE)
    for part in content:
        _check_part(part, parts)


def _check_part(part: Any, parts: dict[str, str]) -> None:
    if not isinstance(part, dict) or part.get("uuid") is not None:
        raise NeedsEngineError("a content part is not a plain object")
    kind = part.get("type")
    key = parts.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise NeedsEngineError("a content part is not text")
    if not isinstance(part.get(key), str):
        raise NeedsEngineError("a content part has no text")
    # If a wrong value here is in a message's first part, chat refuses the request, and a batch drops the whole content.
    if part.get("prompt_cache_breakpoint", _BREAKPOINT) != _BREAKPOINT or not isinstance(
        part.get("closed", True), bool
    ):
        raise NeedsEngineError("a content part's mark is of an unexpected form")


def _tool_call(call: Any) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(function, dict)
        or call.get("type") != "function"
        or not isinstance(call.get("id"), str)
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("arguments"), str)
    ):
        raise NeedsEngineError("a tool call is not a well-formed function call")
    ordered = {"arguments": function["arguments"], "name": function["name"]}
    shaped: Json = {"id": call["id"], "function": ordered | function, "type": call["type"]}
    return shaped | {key: value for key, value in call.items() if key not in shaped}
