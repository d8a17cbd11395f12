"""The conversion of Responses API requests into chat prompts, as vLLM 0.32 does it before templating."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.tokens.message_shape import BILLING_HEADER
from gateway.tokens.messages import Json, NeedsEngineError, NotCountableError
from gateway.tokens.normalise import ChatPrompt, Encoding, function_definition, template_kwargs
from gateway.wire.request import InvalidRequestError

_UNFINISHED = ("in_progress", "incomplete")
_CONTINUED = ("message", "reasoning")
"""Item types that the model continues if the last item has one and is unfinished."""
_CUSTOM_PARAMETERS: Json = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of a custom tool, which the model sees as a function of one text (vllm 0.32, tool_parsers/utils.py)."""

_MOST_REPEATED = 2**20
"""Most characters that the tools of a request bring again and again (`_repeated`)."""


def from_responses(fields: Mapping[str, Any]) -> ChatPrompt:
    """The chat prompt that `/v1/responses` makes of its decoded body.

    Unlike a chat prompt, it is encoded with the special tokens that the tokenizer adds.

    Raises:
        NotCountableError: it holds items other than messages, reasoning, calls and their results as text.
    """
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
    variables = fields.get("chat_template_kwargs")
    if isinstance(variables, dict) and any(value is None or value == "auto" for value in variables.values()):
        # They reach the template here, unless the engine has defaults (`--default-chat-template-kwargs`).
        raise NotCountableError("a template variable is not set")
    continued = _continues(given)
    try:
        return ChatPrompt(
            messages=messages,
            tools=_tools(fields.get("tools")),
            template_kwargs=template_kwargs(
                variables,
                add_generation_prompt=not continued,
                continue_final_message=continued,
                reasoning_effort=(reasoning or {}).get("effort"),
            ),
            encoding=Encoding(
                add_special_tokens=True,
                truncate=None if fields.get("truncation", "disabled") == "disabled" else -1,
                output_budget=bool(fields.get("max_output_tokens")),
            ),
        )
    except NeedsEngineError as error:
        # The engine has no counting route for this API.
        raise NotCountableError(str(error)) from None


def _continues(given: str | list[Json]) -> bool:
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in _CONTINUED and last.get("status") in _UNFINISHED


def _add_item(messages: list[Json], item: Any) -> None:
    """Add an input item: as a new message, or to the assistant's message before it."""
    if not isinstance(item, dict):
        raise NotCountableError("an input item is no object")
    kind = item.get("type", "message")
    if kind in ("function_call", "custom_tool_call"):
        call = _call(item)
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        if not isinstance(item.get("call_id"), str):
            raise NotCountableError("a tool's output names no call")
        messages.append(
            {"role": "tool", "content": _text_or_parts(item.get("output")), "tool_call_id": item["call_id"]}
        )
    elif kind == "reasoning":
        _say(messages, "reasoning", _reasoning(item))
    elif kind == "message" and item.get("role") == "assistant" and item.get("content") != []:
        _say(messages, "content", _assistant_text(item.get("content")))
    elif kind == "message" and item.get("role") in ("user", "system", "developer", "assistant"):
        messages.append(_passed_on(item))
    else:
        raise NotCountableError("an input item is not a message, reasoning, a call or its output")


def _passed_on(item: Json) -> Json:
    """A message that the engine takes for one of chat's, with what else it brings."""
    content = _text_or_parts(item.get("content"))
    if item["role"] == "system" and not isinstance(content, str):
        _check_header(content)
    if item["role"] == "assistant" and any(item.get(key) for key in ("reasoning", "reasoning_content", "tool_calls")):
        raise NotCountableError("an empty message brings reasoning or calls")
    named = {key: item[key] for key in ("name", "task") if isinstance(item.get(key), str)}
    return {"role": item["role"], "content": content} | named


def _say(messages: list[Json], key: str, text: str) -> None:
    """Add an assistant's text or reasoning: to its last message if that has none yet, else as a new message."""
    if messages and messages[-1]["role"] == "assistant" and messages[-1].get(key) is None:
        messages[-1][key] = text
    else:
        messages.append({"role": "assistant", key: text})


def _call(item: Json) -> Json:
    custom = item["type"] == "custom_tool_call"
    name, arguments = item.get("name"), item.get("input" if custom else "arguments")
    namespace = None if custom else item.get("namespace")
    if not all(isinstance(value, str) for value in (item.get("call_id"), name, arguments)):
        raise NotCountableError("a call is not well formed")
    if not isinstance(namespace, str | None):
        raise NotCountableError("a call's namespace is not text")
    function = {
        "name": f"{namespace}__{name}" if namespace else name,
        "arguments": json.dumps({"input": arguments}, ensure_ascii=False) if custom else arguments,
    }
    return {"id": item["call_id"], "function": function, "type": "function"}


def _reasoning(item: Json) -> str:
    """The text of a reasoning item: the first part of its content, else of its summary. Encrypted ones are refused."""
    content, summary = item.get("content") or [], item.get("summary")
    for parts, kind in ((content, "reasoning_text"), (summary, "summary_text")):
        if not isinstance(parts, list) or not all(_is_text(part, kind) for part in parts):
            raise NotCountableError("reasoning is not text")
    if item.get("encrypted_content") or not isinstance(item.get("id", ""), str):
        raise NotCountableError("reasoning is encrypted or not well formed")
    texts: list[str] = [part["text"] for part in [*content, *(summary or ())]]
    return texts[0] if texts else ""


def _assistant_text(content: Any) -> str:
    """An assistant's text. Of several parts the engine takes the first."""
    if isinstance(content, str):
        return content
    first = content[0] if isinstance(content, list) and content else None
    if isinstance(first, dict) and first.get("type") in ("output_text", "input_text"):
        text = first.get("text")
        if isinstance(text, str):
            return text
    raise NotCountableError("an assistant's message is not text")


def _text_or_parts(content: Any) -> str | list[Json]:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [_part(part) for part in content]
    raise NotCountableError("a message is neither text nor parts")


def _part(part: Any) -> Json:
    """A content part as chat has it. An image is one that the engine counts."""
    if _is_text(part, "input_text"):
        return {**part, "type": "text"}
    if isinstance(part, dict) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise NotCountableError("a content part is neither text nor an image by its URL")


def _check_header(parts: list[Json]) -> None:
    # The engine cuts this header off texts but not off this API's parts; the shared conversion here would lose it.
    if any(part.get("text", "").startswith(BILLING_HEADER) for part in parts):
        raise NotCountableError("a part of a system message starts with a billing header")


def _is_text(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind and isinstance(part.get("text"), str)


def _tools(tools: Any) -> list[Json] | None:
    """The functions shown to the model; an empty list if the request has only tools of other kinds."""
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise NotCountableError("tools is not a list of tools")
    if sum(map(_repeated, tools)) > _MOST_REPEATED:
        raise InvalidRequestError("The request has too many tools, or namespaces with too long names.", "tools")
    return [
        {"type": "function", "function": function_definition(function)} for tool in tools for function in _shown(tool)
    ]


def _repeated(tool: Json) -> int:
    """The characters that this tool brings again and again: a namespace's name, or what all custom tools take."""
    match tool:
        case {"type": "namespace", "name": str(name), "tools": list(inner)}:
            return len(name) * len(inner)
        case {"type": "custom"}:
            return len(str(_CUSTOM_PARAMETERS))
    return 0


def _shown(tool: Json) -> Iterator[Json]:
    match tool.get("type"):
        case "function":
            yield tool
        case "custom":
            yield {"name": tool.get("name"), "description": tool.get("description"), "parameters": _CUSTOM_PARAMETERS}
        case "namespace":
            name, inner = tool.get("name"), tool.get("tools")
            if not isinstance(name, str) or not isinstance(inner, list):
                raise NotCountableError("a namespace is not well formed")
            for one in inner:
                if not isinstance(one, dict):
                    raise NotCountableError("a namespace is not well formed")
                if one.get("type") == "function":
                    yield one | {"name": f"{name}__{one.get('name')}"}
