"""The prompts of a request, as its API builds them, and the features that they bring."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from gateway.tokens.body_fields import MOST_VALUES, values
from gateway.tokens.features import Feature, features
from gateway.tokens.fields import prompt_fields
from gateway.tokens.messages import Json
from gateway.tokens.messages_api import from_messages
from gateway.tokens.normalise import ChatPrompt, TextPrompt, batched, chat_prompt, conversations, text_prompt
from gateway.tokens.responses_api import from_responses
from gateway.wire.engine_kinds import VLLM
from gateway.wire.request import MAX_REPEATED_BYTES, Api, InvalidRequestError


def _prompts(api: Api, fields: Mapping[str, Any]) -> Sequence[ChatPrompt | TextPrompt]:
    match api:
        case Api.CHAT:
            return [chat_prompt(fields)]
        case Api.BATCH:
            check_shared(fields)
            return batched(fields)
        case Api.COMPLETIONS:
            return [text_prompt(fields)]
        case Api.MESSAGES:
            return [from_messages(fields)]
        case Api.RESPONSES:
            return [from_responses(fields)]


def check_shared(fields: Mapping[str, Any], unseen: Json | None = None) -> None:
    """Check the fields that the conversations of a batch share: the engine reads and renders them for each.

    Raises:
        InvalidRequestError: for so many conversations they are too large.
    """
    number = len(conversations(fields))
    names = [
        name
        for name in (*prompt_fields(VLLM.name, Api.BATCH), *(unseen or ()))
        if name != "messages" and name in fields
    ]
    shared = json.dumps({name: fields[name] for name in names}).encode()
    if number * len(shared) > MAX_REPEATED_BYTES or number * values(shared) > MOST_VALUES:
        raise InvalidRequestError(
            f"Each of the {number} conversations brings {', '.join(names)} again, {len(shared)} bytes: "
            "send fewer conversations in one request, or less in these fields.",
            names[0],
        )


def prompts_of(
    api: Api, fields: Mapping[str, Any], *, excludes_unused: bool
) -> tuple[Sequence[ChatPrompt | TextPrompt], frozenset[Feature]]:
    """A request's prompts, and the features they bring."""
    prompts = _prompts(api, fields)
    brought = features(_whole(prompts))
    if Feature.TOOLS not in brought or not forbids_tools(api, fields):
        return prompts, brought
    if excludes_unused:
        prompts = [
            structs.replace(prompt, tools=None) if isinstance(prompt, ChatPrompt) else prompt for prompt in prompts
        ]
        brought -= {Feature.TOOLS}
    return prompts, brought | {Feature.UNUSED_TOOLS}


def _whole(prompts: Sequence[ChatPrompt | TextPrompt]) -> ChatPrompt | TextPrompt:
    """One prompt with the features of all: those of a request differ in nothing but their messages."""
    first = prompts[0]
    if isinstance(first, TextPrompt) or len(prompts) == 1:
        return first
    chats = [prompt for prompt in prompts if isinstance(prompt, ChatPrompt)]
    return structs.replace(first, messages=[message for chat in chats for message in chat.messages])


def forbids_tools(api: Api, fields: Mapping[str, Any]) -> bool:
    """Whether the model may use no tool."""
    choice = fields.get("tool_choice")
    return choice == "none" if api is not Api.MESSAGES else isinstance(choice, dict) and choice.get("type") == "none"
