"""Counters that are wrong in one way each: the ways of a naive `apply_chat_template`, and then some.

Each changes one function of the counter; a matrix that is worth its name notices every one of them.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.tokens import message_shape, messages, messages_api, normalise, prompts, render, responses_api
from gateway.tokens.message_shape import ContentFormat, fold_developer

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    MUTANTS[function.__name__] = function
    return function


def _result(patch: pytest.MonkeyPatch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """Let `change` have the last word on what a function returns."""
    original = getattr(module, name)
    patch.setattr(module, name, lambda *args, **kwargs: change(original(*args, **kwargs), *args))


@mutant
def no_generation_prompt_by_default(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        normalise,
        "flag",
        lambda fields, name, default=False: fields.get(name, default and name != "add_generation_prompt"),
    )


@mutant
def tools_as_they_came(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(normalise, "tool_definitions", lambda tools: tools or None)


@mutant
def nulls_of_tools_left_out(patch: pytest.MonkeyPatch) -> None:
    _result(patch, normalise, "function_definition", lambda made, *_: {k: v for k, v in made.items() if v is not None})


@mutant
def strict_left_out(patch: pytest.MonkeyPatch) -> None:
    _result(patch, normalise, "function_definition", lambda made, *_: {k: v for k, v in made.items() if k != "strict"})


@mutant
def defer_loading_not_handed_down(patch: pytest.MonkeyPatch) -> None:
    original = normalise.function_definition
    patch.setattr(normalise, "function_definition", lambda function, **_: original(function))


@mutant
def no_tools_where_the_choice_is_none(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        prompts,
        "chat_prompt",
        lambda made, fields: replace(made, tools=None) if fields.get("tool_choice") == "none" else made,
    )


@mutant
def arguments_left_as_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_shape, "_arguments", lambda arguments: arguments)


@mutant
def arguments_need_not_be_an_object(patch: pytest.MonkeyPatch) -> None:
    def loads(arguments: str) -> Any:
        try:
            return json.loads(arguments or "{}")
        except ValueError:
            return {}

    patch.setattr(message_shape, "_arguments", loads)


@mutant
def keys_of_calls_in_the_order_they_came(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(messages, "_tool_call", lambda call: call)


@mutant
def extra_keys_of_calls_left_out(patch: pytest.MonkeyPatch) -> None:
    _result(patch, message_shape, "_tool_call", lambda made, *_: {k: made[k] for k in ("id", "function", "type")})


@mutant
def empty_tool_calls_kept(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        message_shape,
        "_shape",
        lambda made, message, *_: made | ({"tool_calls": []} if message.get("tool_calls") == [] else {}),
    )


@mutant
def reasoning_content_not_renamed(patch: pytest.MonkeyPatch) -> None:
    _result(patch, normalise, "well_formed", lambda _, message: message)


@mutant
def reasoning_under_one_name(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch, message_shape, "_shape", lambda made, *_: {k: v for k, v in made.items() if k != "reasoning_content"}
    )


@mutant
def content_always_a_string(patch: pytest.MonkeyPatch) -> None:
    original = render.conversation  # type: ignore[attr-defined]
    patch.setattr(render, "conversation", lambda messages, _: original(messages, ContentFormat.STRING))


@mutant
def content_always_parts(patch: pytest.MonkeyPatch) -> None:
    original = render.conversation  # type: ignore[attr-defined]
    patch.setattr(render, "conversation", lambda messages, _: original(messages, ContentFormat.PARTS))


@mutant
def content_as_it_came(patch: pytest.MonkeyPatch) -> None:
    _result(patch, message_shape, "_shape", lambda made, message, *_: made | {"content": message.get("content")})


@mutant
def empty_texts_joined_too(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        message_shape,
        "_content",
        lambda made, role, parts, kind: (
            "\n".join(message_shape._text(part) for part in parts) if kind is ContentFormat.STRING else made
        ),
    )


@mutant
def tool_results_left_in_parts(patch: pytest.MonkeyPatch) -> None:
    original = message_shape._content
    patch.setattr(message_shape, "_content", lambda _role, parts, kind: original("user", parts, kind))


@mutant
def extra_keys_of_parts_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_shape, "_part", lambda part: {"type": "text", "text": message_shape._text(part)})


@mutant
def unknown_keys_of_messages_passed_on(patch: pytest.MonkeyPatch) -> None:
    _result(patch, message_shape, "_shape", lambda made, message, *_: message | made)


@mutant
def names_left_out(patch: pytest.MonkeyPatch) -> None:
    _result(patch, message_shape, "_shape", lambda made, *_: {k: v for k, v in made.items() if k != "name"})


@mutant
def developer_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(render, "fold_developer", lambda messages: messages)


@mutant
def developer_renamed_but_not_merged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        render,
        "fold_developer",
        lambda messages: [m | {"role": "system"} if m["role"] == "developer" else m for m in messages],
    )


@mutant
def developer_always_folded(patch: pytest.MonkeyPatch) -> None:
    original = render.conversation  # type: ignore[attr-defined]
    patch.setattr(render, "conversation", lambda *args: fold_developer(original(*args)))


@mutant
def billing_header_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_shape, "_without_billing_header", list)


@mutant
def billing_header_takes_its_whole_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        message_shape,
        "_without_billing_header",
        lambda parts: [part for part in parts if not part["text"].startswith("x-anthropic")],
    )


@mutant
def billing_header_stripped_from_users(patch: pytest.MonkeyPatch) -> None:
    original = message_shape._parts
    patch.setattr(message_shape, "_parts", lambda content: message_shape._without_billing_header(original(content)))


@mutant
def thinking_dropped(patch: pytest.MonkeyPatch) -> None:
    _result(patch, message_shape, "_parts", lambda made, *_: [part for part in made if part["type"] != "thinking"])


@mutant
def special_tokens_added_to_chats(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        prompts,
        "chat_prompt",
        lambda made, *_: replace(made, encoding=replace(made.encoding, add_special_tokens=True)),
    )


@mutant
def no_special_tokens_in_completions(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        prompts,
        "text_prompt",
        lambda made, *_: replace(made, encoding=replace(made.encoding, add_special_tokens=False)),
    )


@mutant
def no_special_tokens_in_responses(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        prompts,
        "from_responses",
        lambda made, *_: replace(made, encoding=replace(made.encoding, add_special_tokens=False)),
    )


@mutant
def null_and_auto_passed_on(patch: pytest.MonkeyPatch) -> None:
    _result(patch, normalise, "template_kwargs", lambda made, given: (given or {}) | made)


@mutant
def variables_of_the_request_win(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        normalise,
        "template_kwargs",
        lambda made, given: made | {k: v for k, v in (given or {}).items() if v is False},
    )


@mutant
def variables_ignored(patch: pytest.MonkeyPatch) -> None:
    original = normalise.template_kwargs
    patch.setattr(normalise, "template_kwargs", lambda _given, **rest: original(None, **rest))


@mutant
def documents_ignored(patch: pytest.MonkeyPatch) -> None:
    _result(patch, normalise, "template_kwargs", lambda made, *_: {k: v for k, v in made.items() if k != "documents"})


@mutant
def effort_ignored(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch, normalise, "template_kwargs", lambda made, *_: {k: v for k, v in made.items() if k != "reasoning_effort"}
    )


@mutant
def effort_does_not_switch_thinking(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        normalise,
        "template_kwargs",
        lambda made, given: {k: v for k, v in made.items() if k != "enable_thinking" or k in (given or {})},
    )


@mutant
def effort_overrides_the_wish_to_think(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        normalise,
        "template_kwargs",
        lambda made, *_: made | ({"enable_thinking": True} if made.get("reasoning_effort") == "high" else {}),
    )


@mutant
def one_template_with_tools_and_without(patch: pytest.MonkeyPatch) -> None:
    _result(patch, prompts, "chat_prompt", lambda made, *_: replace(made, tools=None))


@mutant
def truncation_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(render, "cut", lambda tokens, *_: tokens)


@mutant
def no_room_left_by_truncation(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        prompts,
        "text_prompt",
        lambda made, *_: replace(made, encoding=replace(made.encoding, output_budget=False)),
    )


@mutant
def system_blocks_on_lines_of_their_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        messages_api,
        "_system",
        lambda system: system if isinstance(system, str | None) else "\n".join(block["text"] for block in system),
    )


@mutant
def schema_type_not_filled_in(patch: pytest.MonkeyPatch) -> None:
    _result(
        patch,
        messages_api,
        "_tools",
        lambda made, tools: (
            made
            and [
                m | {"function": m["function"] | {"parameters": t["input_schema"]}}
                for m, t in zip(made, tools, strict=True)
            ]
        ),
    )


@mutant
def tool_results_left_out(patch: pytest.MonkeyPatch) -> None:
    _result(patch, messages_api, "_message", lambda made, *_: [m for m in made if m["role"] != "tool"])


@mutant
def function_calls_in_messages_of_their_own(patch: pytest.MonkeyPatch) -> None:
    def add(messages: list[dict[str, Any]], item: Any) -> None:
        if item.get("type") == "function_call":
            messages.append({"role": "assistant", "tool_calls": [responses_api._call(item)]})
        else:
            original(messages, item)

    original = responses_api._add_item
    patch.setattr(responses_api, "_add_item", add)


@mutant
def reasoning_items_left_out(patch: pytest.MonkeyPatch) -> None:
    original = responses_api._add_item
    patch.setattr(
        responses_api, "_add_item", lambda made, item: item.get("type") == "reasoning" or original(made, item)
    )


@mutant
def summaries_of_reasoning_left_out(patch: pytest.MonkeyPatch) -> None:
    original = responses_api._reasoning
    patch.setattr(responses_api, "_reasoning", lambda item: original(item | {"summary": []}))


@mutant
def custom_tools_left_out(patch: pytest.MonkeyPatch) -> None:
    original = responses_api._shown
    patch.setattr(responses_api, "_shown", lambda tool: () if tool["type"] == "custom" else original(tool))
