"""The questions to an engine's own counting routes that count a request: vLLM's, and the values of all kinds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from gateway.tokens.body_fields import TOO_DEEP, decoded
from gateway.tokens.features import Feature, Kind, features
from gateway.tokens.fields import OURS, as_read
from gateway.tokens.length_bound import MOST_CHARS_PER_TOKEN, check_length
from gateway.tokens.messages import Json, NeedsEngineError
from gateway.tokens.normalise import ChatPrompt, Encoding, chat_encoding, conversations, text_prompt
from gateway.tokens.prompts import check_shared, forbids_tools, prompts_of
from gateway.wire.request import Api, InvalidRequestError


class CountedIn(Enum):
    """Where an answer of a counting route holds the count."""

    NUMBER = auto()
    """It says how many there are."""
    TOKENS = auto()
    """It lists the ids under `tokens`."""
    ENTRIES = auto()
    """It is a list with an object for each token, or holds one as `tokenize_response`: TGI's."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A request to one of the engine's counting routes."""

    path: str
    own: bytes
    """A JSON object."""
    shared: bytes = b""
    """Another, of the fields that many calls share: the same bytes, so that they are in memory once."""
    counted_in: CountedIn = CountedIn.NUMBER

    @property
    def body(self) -> bytes:
        """Both in one."""
        return self.own[:-1] + b"," + self.shared[1:] if len(self.shared) > len(b"{}") else self.own


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The questions to the engine that count a request."""

    prompts: tuple[EngineCall | int, ...]
    """One for each prompt: a call, or the count if it came as token ids or is surely cut to the model's length."""
    encoding: Encoding
    kind: Kind
    exact: bool = True
    """Whether the count is exact: a counting route orders the keys of some tool calls differently, and is not told all
    that some models' prompts show."""


def engine_work(
    api: Api,
    body: bytes,
    max_model_len: int,
    *,
    kinds: frozenset[str] = OURS,
    excludes_unused: bool = False,
    proven: bool = True,
) -> EngineWork:
    """The engine's own counting requests for a body.

    Args:
        api: of the request.
        body: its bytes.
        max_model_len: in tokens. Counting routes have no limit of their own, so what cannot fit is not sent to them.
        kinds: as for `count_body`; of one whose questions are these.
        excludes_unused: as for `count_body`. The route for conversations does not know which tools may be used.
        proven: whether the engine is known to build conversations with the template that kvgate has. Other ways to
            build them may show `response_format` and `tool_choice`, which `/tokenize` takes as template variables only.

    Raises:
        NeedsEngineError, NotCountableError: no counting route takes such a request.
        InvalidRequestError: it has no prompt, or is nested too deeply.
        PromptTooLongError: it cannot fit.
    """
    try:
        return _engine_work(api, body, max_model_len, kinds, excludes_unused=excludes_unused, proven=proven)
    except RecursionError:
        raise InvalidRequestError(TOO_DEEP) from None


def _engine_work(
    api: Api, body: bytes, max_model_len: int, kinds: frozenset[str], *, excludes_unused: bool, proven: bool
) -> EngineWork:
    longest = max_model_len * MOST_CHARS_PER_TOKEN
    long = len(body) > longest and check_length(api, _readable(decoded(body)), max_model_len)
    if api is Api.MESSAGES:
        return EngineWork(
            (EngineCall("/v1/messages/count_tokens", body),), Encoding(add_special_tokens=False), Kind(api)
        )
    fields = _readable(decoded(body))
    unseen = {} if proven else _unseen(api, fields)
    if api is Api.CHAT:
        if excludes_unused and forbids_tools(api, fields):
            fields.pop("tools", None)
        call = max_model_len if long else _tokenize(_messages_field(fields) | _chat_fields(fields, unseen))
        return EngineWork((call,), chat_encoding(fields), Kind(api), exact=not unseen)
    if api is Api.BATCH:
        check_shared(fields, unseen)
        fields.pop("tools", None)
        shared = b"" if long else json.dumps(_chat_fields(fields, unseen)).encode()
        chats = tuple(
            max_model_len if long else replace(_tokenize(_messages_field({"messages": each})), shared=shared)
            for each in conversations(fields)
        )
        return EngineWork(chats, chat_encoding(fields), Kind(api), exact=not unseen)
    fields = as_read(api, fields, kinds)
    model = {"model": fields["model"]} if "model" in fields else {}
    if api is Api.RESPONSES:
        (prompt,), brought = prompts_of(api, fields, excludes_unused=excludes_unused)
        assert isinstance(prompt, ChatPrompt)  # noqa: S101  # as this API has it
        call = _tokenize(model | _rendered_fields(prompt, unseen))
        exact = not unseen and Feature.TOOL_CALLS not in brought
        return EngineWork((call,), prompt.encoding, Kind(api, brought), exact)
    texts = text_prompt(fields)
    special = {"add_special_tokens": texts.encoding.add_special_tokens}
    calls: list[EngineCall | int] = []
    for item in texts.prompts:
        if isinstance(item, list):
            calls.append(len(item))
        else:
            calls.append(max_model_len if len(item) > longest else _tokenize(model | {"prompt": item} | special))
    return EngineWork(tuple(calls), texts.encoding, Kind(api, features(texts)))


def _readable(fields: Json) -> Json:
    """Without the options of its encoding that vLLM does not read: it refuses the request, and all of it is counted."""
    for name in ("add_special_tokens", "truncate_prompt_tokens"):
        try:
            chat_encoding({name: fields[name]} if name in fields else {})
        except NeedsEngineError:
            del fields[name]
    return fields


def _tokenize(fields: Json) -> EngineCall:
    return EngineCall("/tokenize", json.dumps(fields).encode())


# Fields that `/tokenize` reads from a chat request under the same name.
_TOKENIZE_FIELDS = (
    "model", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "media_io_kwargs", "mm_processor_kwargs",
)  # fmt: skip


def _unseen(api: Api, fields: Mapping[str, Any]) -> Json:
    """The fields of a conversation that a model's own code may show (Kimi K3 does) and `/tokenize` is not told."""
    names = []
    if api is not Api.RESPONSES and fields.get("response_format") is not None:
        names.append("response_format")
    if api is not Api.BATCH and fields.get("tools") and fields.get("tool_choice") not in (None, "auto"):
        names.append("tool_choice")
    return {name: fields[name] for name in names}


def _chat_fields(fields: Mapping[str, Any], unseen: Json) -> Json:
    """A chat request for `/tokenize`, but its messages: fields that route does not know become template variables."""
    asked = {name: fields[name] for name in _TOKENIZE_FIELDS if name in fields}
    given = fields.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise NeedsEngineError("chat_template_kwargs is not an object")
    own = {name: fields[name] for name in ("documents", "reasoning_effort") if fields.get(name) is not None}
    if "reasoning_effort" in own:
        own = {"enable_thinking": own["reasoning_effort"] != "none"} | (given or {}) | own
    if variables := (given or {}) | own | unseen:
        asked["chat_template_kwargs"] = variables
    return asked


def _messages_field(fields: Mapping[str, Any]) -> Json:
    messages = fields.get("messages")
    if isinstance(messages, list):
        return {"messages": [_renamed(message) for message in messages]}
    return {"messages": messages} if "messages" in fields else {}


def _renamed(message: Any) -> Any:
    if not isinstance(message, dict) or "reasoning_content" not in message:
        return message
    renamed = {key: value for key, value in message.items() if key != "reasoning_content"}
    if renamed.get("reasoning") is None:
        renamed["reasoning"] = message["reasoning_content"]
    return renamed


def _rendered_fields(prompt: ChatPrompt, unseen: Json) -> Json:
    kwargs = dict(prompt.template_kwargs)
    flags = {name: kwargs.pop(name) for name in ("add_generation_prompt", "continue_final_message")}
    tools = {} if prompt.tools is None else {"tools": prompt.tools}
    special = {"add_special_tokens": prompt.encoding.add_special_tokens}
    return {"messages": prompt.messages, "chat_template_kwargs": kwargs | unseen} | flags | tools | special
