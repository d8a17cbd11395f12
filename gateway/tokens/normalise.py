"""The normalisation of chat and completions requests into the engine's input for its template and tokenizer.

It mirrors vLLM 0.32 and 0.33 for everything a well-formed request can say. A request that is not well formed, or whose
meaning only the engine knows, raises `NeedsEngineError`: the engine then counts it, or refuses it in its own words.
Older engines differ in places; the probes of `gateway.tokens.probes` find that out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from gateway.tokens.messages import Json, NeedsEngineError, well_formed
from gateway.wire.request import MAX_SEQUENCES, InvalidRequestError, truth, whole

T = TypeVar("T")


class Encoding(msgspec.Struct, frozen=True):
    """The engine's options for encoding a text."""

    add_special_tokens: bool
    truncate: int | None = None
    """`truncate_prompt_tokens`: most tokens to keep. -1 means as many as the model takes, None no truncation."""
    output_budget: bool = False
    """Whether the request sets `max_tokens`: then truncation to the model's length leaves room for one token."""

    def most_tokens(self, max_model_len: int) -> int | None:
        """The length to which truncation cuts a prompt; None if nothing is cut."""
        if self.truncate is None:
            return None
        if self.truncate >= 0:
            return self.truncate
        return max(0, max_model_len - 1) if self.output_budget else max_model_len


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation, not yet shaped for a template."""

    messages: Sequence[Json]
    """Well-formed messages, `reasoning_content` already renamed to `reasoning`."""
    tools: list[Json] | None
    """The tools as vLLM's own models serialise them."""
    template_kwargs: Json
    encoding: Encoding


class TokenIds(list[int]):
    """Token ids of whose items nobody need ask whether they are numbers."""

    __slots__ = ()


class TextPrompt(msgspec.Struct, frozen=True):
    """The prompts of a completions request: texts, or token ids."""

    prompts: tuple[str | list[int], ...]
    encoding: Encoding = Encoding(add_special_tokens=True)


_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})

# Arguments of `apply_chat_template` itself: as template kwargs they would control the renderer, not the template.
_RENDERER_ARGUMENTS = frozenset(
    {
        "self", "conversation", "messages", "tools", "chat_template", "tokenize", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
    }
)  # fmt: skip


def chat_prompt(fields: Mapping[str, Any]) -> ChatPrompt:
    """The chat prompt that `/v1/chat/completions` makes of its decoded body.

    Raises:
        NeedsEngineError: only the engine can count it.
        InvalidRequestError: it has no messages.
    """
    messages = fields.get("messages")
    documents = fields.get("documents")
    if documents is not None and not _is_documents(documents):
        raise NeedsEngineError("documents are not plain strings by name")
    return ChatPrompt(
        messages=well_formed_all(messages),
        tools=tool_definitions(fields.get("tools")),
        template_kwargs=template_kwargs(
            fields.get("chat_template_kwargs"),
            add_generation_prompt=flag(fields, "add_generation_prompt", default=True),
            continue_final_message=flag(fields, "continue_final_message", default=False),
            reasoning_effort=fields.get("reasoning_effort"),
            documents=documents,
        ),
        encoding=chat_encoding(fields),
    )


def batched(fields: Mapping[str, Any]) -> list[ChatPrompt]:
    """The chat prompts that `/v1/chat/completions/batch` makes of its decoded body, without tools.

    They share all but their messages, so a field is looked at once, however many they are.

    Raises:
        NeedsEngineError: only the engine can count it.
        InvalidRequestError: it has no conversations, or too many.
    """
    made = conversations(fields)
    shared = chat_prompt({**fields, "tools": None, "messages": []})
    return [structs.replace(shared, messages=well_formed_all(messages)) for messages in made]


def conversations(fields: Mapping[str, Any]) -> list[Any]:
    """The conversations of a batch.

    Raises:
        InvalidRequestError: it has none, or too many.
    """
    found = fields.get("messages")
    if not isinstance(found, list) or not found:
        raise InvalidRequestError("messages: expected a list of conversations", "messages")
    check_number(found, "messages")
    return found


def well_formed_all(messages: Any) -> list[Json]:
    """The messages of a conversation, as vLLM's request model passes them on.

    Raises:
        NeedsEngineError: only the engine can count one of them.
        InvalidRequestError: they are no list.
    """
    if not isinstance(messages, list):
        raise InvalidRequestError("messages: expected a list", "messages")
    return [well_formed(message) for message in messages]


def chat_encoding(fields: Mapping[str, Any]) -> Encoding:
    """The encoding of a chat request's text.

    Raises:
        NeedsEngineError: a field about the encoding has an unexpected type.
    """
    output = fields.get("max_completion_tokens")
    return Encoding(
        add_special_tokens=flag(fields, "add_special_tokens", default=False),
        truncate=_truncation(fields),
        output_budget=bool(fields.get("max_tokens") if output is None else output),
    )


def text_prompt(fields: Mapping[str, Any]) -> TextPrompt:
    """The prompts that `/v1/completions` makes of its decoded body.

    Raises:
        NeedsEngineError: a field about its encoding has an unexpected type.
        InvalidRequestError: it has no prompt, too many, or one that is neither text nor token ids.
    """
    return TextPrompt(
        prompts=_prompts(fields.get("prompt")),
        encoding=Encoding(
            add_special_tokens=flag(fields, "add_special_tokens", default=True),
            truncate=_truncation(fields),
            output_budget=_read(whole, fields.get("max_tokens"), "max_tokens") != 0,  # null is the default, too
        ),
    )


def template_kwargs(
    given: Any,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    reasoning_effort: Any,
    documents: Any = None,
) -> Json:
    """The variables a template may see: the request's own, overridden by those that its other fields set.

    Raises:
        NeedsEngineError: a variable would control the renderer, or has an unexpected type.
    """
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise NeedsEngineError("chat_template_kwargs is not an object")
    if steering := _RENDERER_ARGUMENTS & given.keys():
        raise NeedsEngineError(f"chat_template_kwargs sets {min(steering)}")
    kwargs = given | {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    if documents is not None:
        kwargs["documents"] = documents
    if reasoning_effort is not None:
        if not isinstance(reasoning_effort, str) or reasoning_effort not in _EFFORTS:
            raise NeedsEngineError("reasoning_effort is not one of OpenAI's")
        kwargs["reasoning_effort"] = reasoning_effort
        if "enable_thinking" not in given:
            kwargs["enable_thinking"] = reasoning_effort != "none"
    # vLLM treats None and "auto" as "not set" wherever it merges settings.
    return {name: value for name, value in kwargs.items() if value is not None and value != "auto"}


def tool_definitions(tools: Any) -> list[Json] | None:
    """Tools as vLLM's models serialise them: keys in its order, nulls spelled out, unknown keys dropped.

    Raises:
        NeedsEngineError: a tool is not a well-formed function.
    """
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise NeedsEngineError("tools is not a filled list")
    return [_tool_definition(tool) for tool in tools]


def function_definition(function: Any, *, defer_loading: bool | None = None) -> Json:
    """One function of a tool, as vLLM's model serialises it.

    Args:
        function: what the client sent.
        defer_loading: the tool's value, used if the function itself has none.

    Raises:
        NeedsEngineError: it is not well formed.
    """
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NeedsEngineError("a tool has no function with a name")
    for key, kind in (("description", str), ("parameters", dict)):
        if not isinstance(function.get(key), kind | None):
            raise NeedsEngineError(f"a tool's {key} is of an unexpected type")
    definition = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        definition["strict"] = flag(function, "strict")
    own = defer_loading if function.get("defer_loading") is None else flag(function, "defer_loading")
    if own is not None:
        definition["defer_loading"] = own
    return definition


def flag(fields: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A boolean field.

    Raises:
        NeedsEngineError: it is nothing that vLLM reads as a boolean.
    """
    value = fields.get(name, default)
    if value is None:
        raise NeedsEngineError(f"{name} is null")
    return _read(truth, value, name)


def _read(reader: Callable[[Any, str], T], value: Any, name: str) -> T:
    try:
        return reader(value, name)
    except InvalidRequestError as error:
        raise NeedsEngineError(error.message) from None


def _tool_definition(tool: Any) -> Json:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise NeedsEngineError("a tool is not a function")
    defer_loading = None if tool.get("defer_loading") is None else flag(tool, "defer_loading")
    definition: Json = {
        "type": "function",
        "function": function_definition(tool.get("function"), defer_loading=defer_loading),
    }
    if defer_loading is not None:
        definition["defer_loading"] = defer_loading
    return definition


def _is_documents(documents: Any) -> bool:
    return isinstance(documents, list) and all(
        isinstance(document, dict) and all(isinstance(value, str) for value in document.values())
        for document in documents
    )


def _truncation(fields: Mapping[str, Any]) -> int | None:
    value = _read(whole, fields.get("truncate_prompt_tokens"), "truncate_prompt_tokens")
    if value is not None and value < -1:
        raise NeedsEngineError("truncate_prompt_tokens is not a whole number from -1")
    return value


def _prompts(prompt: Any) -> tuple[str | list[int], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if _is_ids(prompt):
            return (prompt,)
        check_number(prompt, "prompt")
        if all(isinstance(item, str) for item in prompt):
            return tuple(prompt)
        if all(isinstance(item, list) and item and _is_ids(item) for item in prompt):
            return tuple(prompt)
    raise InvalidRequestError("prompt: expected text, token ids, or a list of either", "prompt")


def check_number(prompts: list[Any], name: str) -> None:
    """Check the number of prompts: each becomes a request of its own to the engine, with as many objects."""
    if len(prompts) > MAX_SEQUENCES:
        raise InvalidRequestError(f"`{name}` may hold {MAX_SEQUENCES} prompts, and has {len(prompts)}.", name)


_NUMBERS = frozenset({int, float, bool})


def _is_ids(items: list[Any]) -> bool:
    return type(items) is TokenIds or _NUMBERS.issuperset(map(type, items))
