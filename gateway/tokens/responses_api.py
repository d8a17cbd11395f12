"""Requests of the Responses API as chat prompts, the way vLLM 0.32 converts them before templating."""

from collections.abc import Mapping
from typing import Any

from gateway.tokens.messages import Json, NeedsEngineError, NotCountableError
from gateway.tokens.normalise import ChatPrompt, Encoding, function_definition, template_kwargs
from gateway.wire.request import InvalidRequestError


def from_responses(fields: Mapping[str, Any]) -> ChatPrompt:
    """What `/v1/responses` makes of its decoded body.

    Unlike a chat request, its prompt is encoded with the special tokens the tokenizer adds.

    Raises:
        NotCountableError: it continues a stored response, or holds items that are not messages, function calls and
            their textual results.
    """
    for key in ("previous_response_id", "previous_input_messages", "prompt"):
        if fields.get(key) is not None:
            raise NotCountableError(f"the request sets {key}")
    messages: list[Json] = []
    instructions = fields.get("instructions")
    if not isinstance(instructions, str | None):
        raise NotCountableError("instructions are not text")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    given = fields.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            _add_item(messages, item)
    else:
        raise InvalidRequestError("input: expected text or a list of items", "input")
    reasoning = fields.get("reasoning")
    if not isinstance(reasoning, dict | None):
        raise NotCountableError("reasoning is not an object")
    try:
        return ChatPrompt(
            messages=messages,
            tools=_tools(fields.get("tools")),
            template_kwargs=template_kwargs(
                fields.get("chat_template_kwargs"),
                add_generation_prompt=True,
                continue_final_message=False,
                reasoning_effort=(reasoning or {}).get("effort"),
            ),
            encoding=Encoding(
                add_special_tokens=True,
                truncate=None if fields.get("truncation", "disabled") == "disabled" else -1,
                output_budget=bool(fields.get("max_output_tokens")),
            ),
        )
    except NeedsEngineError as error:
        # The engine has no counting route for this API that could help out.
        raise NotCountableError(str(error)) from None


def _add_item(messages: list[Json], item: Any) -> None:
    """Add an input item: as a message, or to the assistant's message before it."""
    if not isinstance(item, dict) or item.get("status") in ("in_progress", "incomplete"):
        raise NotCountableError("an input item is unfinished or no object")
    kind = item.get("type", "message")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "function_call":
        call = _function_call(item)
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        if not isinstance(item.get("output"), str) or not isinstance(item.get("call_id"), str):
            raise NotCountableError("a function's output is not text")
        messages.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
    elif kind == "message" and item.get("role") == "assistant":
        text = _assistant_text(item.get("content"))
        if last is not None and last.get("content") is None:
            last["content"] = text
        else:
            messages.append({"role": "assistant", "content": text})
    elif kind == "message" and item.get("role") in ("user", "system", "developer"):
        messages.append({"role": item["role"], "content": _input_text(item.get("content"))})
    else:
        raise NotCountableError("an input item is not a message, a function call or its output")


def _function_call(item: Json) -> Json:
    strings = (item.get("call_id"), item.get("name"), item.get("arguments"))
    if not all(isinstance(value, str) for value in strings) or item.get("namespace") is not None:
        raise NotCountableError("a function call is not well formed")
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "function": function, "type": "function"}


def _assistant_text(content: Any) -> str:
    """An assistant's text; of several parts the engine takes the first."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content and isinstance(content[0], dict):
        text = content[0].get("text")
        if content[0].get("type") == "output_text" and isinstance(text, str):
            return text
    raise NotCountableError("an assistant's message is not text")


def _input_text(content: Any) -> str | list[Json]:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "input_text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return [part | {"type": "text"} for part in content]
    raise NotCountableError("a message is not text")


def _tools(tools: Any) -> list[Json] | None:
    if not tools:
        return None
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and tool.get("type") == "function" for tool in tools
    ):
        raise NotCountableError("a tool is not a function")
    return [{"type": "function", "function": function_definition(tool)} for tool in tools]
