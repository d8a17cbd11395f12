"""The counting functions: they take a body's bytes, and the pool runs them in a thread or in another process."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec import structs

from gateway.admission.events import Prefix
from gateway.tokens import interruption
from gateway.tokens.count import PromptTooLongError
from gateway.tokens.features import Feature, Kind, features
from gateway.tokens.fields import OURS, as_read, prompt_fields, reads_any_case
from gateway.tokens.messages import Json, NeedsEngineError
from gateway.tokens.messages_api import from_messages
from gateway.tokens.normalise import (
    ChatPrompt,
    Encoding,
    TextPrompt,
    TokenIds,
    batched,
    chat_encoding,
    chat_prompt,
    check_number,
    conversations,
    text_prompt,
)
from gateway.tokens.pool import QUICK
from gateway.tokens.prefix import prefix_of
from gateway.tokens.render import MeasuredPrompt, TokenizerSource, renderer
from gateway.tokens.responses_api import from_responses
from gateway.wire.engine_kinds import VLLM
from gateway.wire.fields import OTHER_FIELDS, Use, named
from gateway.wire.request import MAX_REPEATED_BYTES, Api, InvalidRequestError


class Counted(msgspec.Struct, frozen=True):
    """Token counts of a request's prompts, in order."""

    prompts: tuple[int, ...]
    kind: Kind
    prefix: Prefix = ()
    """Leading parts of its prompt, if it has exactly one and the engine may find it in its cache."""
    ids: bytes = b""
    """The token ids of its prompt as a JSON array, if they were asked for."""


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


# No prompt's average comes near it: except for runs of blanks, vocabularies have no token that long.
_MOST_CHARS_PER_TOKEN = 256

# Commas and brackets, weighted by memory: 6 million small values take some 400 MB, and no prompt that fits a model
# has as many. (Those inside texts count too, although they cost nothing.)
_MOST_VALUES = 6_000_000

_SPLIT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_IDS = msgspec.json.Decoder(list[int])
_decode = json.JSONDecoder().raw_decode

_APART = ("model", *named(Use.APART), *named(Use.ADAPTER))
"""The fields in which prompts differ that share no prefix."""
_UNSEEN = OTHER_FIELDS.union(*map(named, Use)) - {"response_format", "json_schema"}
"""The fields that surely show in no prompt."""

_TOO_DEEP = "The request body is nested too deeply."

_PROMPT_FIELDS = (
    "system", "instructions", "messages", "input", "prompt", "suffix", "tools", "documents", "chat_template_kwargs",
)  # fmt: skip


def load(source: TokenizerSource) -> str | None:
    """Load a tokenizer, so that the first count does not wait for it. Returns `QUICK` if it need not have waited long.

    Raises:
        TokenizerUnavailableError: as `gateway.tokens.render.renderer`.
    """
    return QUICK if renderer(source).light else None


def count_body(
    source: TokenizerSource,
    api: Api,
    body: bytes,
    max_model_len: int,
    distrusted: frozenset[Feature] = frozenset(),
    *,
    kinds: frozenset[str] = OURS,
    excludes_unused: bool = False,
    key: bytes | None = None,
    ids_from: int | None = None,
) -> Counted:
    """Count with the tokenizer of the model.

    Args:
        source: the tokenizer.
        api: of the request.
        body: its bytes.
        max_model_len: in tokens; what cannot fit is not encoded.
        distrusted: features that this model's engine is known to treat differently.
        kinds: of the engines that may get it.
        excludes_unused: whether the engine leaves out tools that the model may not use.
        key: for the hashes of the prompt's leading parts; None if they are not needed.
        ids_from: tokens from which on the ids of a single prompt are returned, too, if the engine needs no more than
            these; None for never.

    Raises:
        NeedsEngineError, NotCountableError: it cannot be counted here.
        InvalidRequestError: the engine would refuse it while building the prompt.
        PromptTooLongError: it cannot fit.
        TokenizerUnavailableError: as `gateway.tokens.render.renderer`.
    """
    fields = as_read(api, _fields(body, api, kinds), kinds)
    prompts, brought = _brought(api, fields, excludes_unused=excludes_unused)
    if brought & distrusted:
        raise NeedsEngineError(f"the engine differs in {min(brought & distrusted)}")
    measured = [one for prompt in prompts for one in _measured(source, prompt, max_model_len, alone=len(prompts) == 1)]
    tokens, kind = tuple([one.tokens for one in measured]), Kind(api, brought)
    if len(measured) != 1 or measured[0].encoded is None:
        return Counted(tokens, kind)
    ids = measured[0].encoded.ids
    prefix: Prefix = ()
    if key is not None and not _skips_cache(fields):
        # A LoRA is chosen by its name. Two names of the base model count as two models that share nothing.
        seed = repr([fields.get(name) for name in _APART])
        prefix = prefix_of(ids, key, seed)
    # Of a prompt that came as ids, the engine has no text to return.
    wanted = ids_from is not None and len(ids) >= ids_from and not fields.get("return_prompt_text")
    return Counted(tokens, kind, prefix, msgspec.json.encode(list(ids)) if wanted else b"")


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
        raise InvalidRequestError(_TOO_DEEP) from None


def _engine_work(
    api: Api, body: bytes, max_model_len: int, kinds: frozenset[str], *, excludes_unused: bool, proven: bool
) -> EngineWork:
    longest = max_model_len * _MOST_CHARS_PER_TOKEN
    long = len(body) > longest and _check_length(api, _readable(_fields(body)), max_model_len)
    if api is Api.MESSAGES:
        return EngineWork(
            (EngineCall("/v1/messages/count_tokens", body),), Encoding(add_special_tokens=False), Kind(api)
        )
    fields = _readable(_fields(body))
    unseen = {} if proven else _unseen(api, fields)
    if api is Api.CHAT:
        if excludes_unused and _forbids_tools(api, fields):
            fields.pop("tools", None)
        call = max_model_len if long else _tokenize(_messages_field(fields) | _chat_fields(fields, unseen))
        return EngineWork((call,), chat_encoding(fields), Kind(api), exact=not unseen)
    if api is Api.BATCH:
        _check_shared(fields, unseen)
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
        (prompt,), brought = _brought(api, fields, excludes_unused=excludes_unused)
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


def estimate_body(
    source: TokenizerSource | None, api: Api, body: bytes, *, kinds: frozenset[str] = OURS, at_most: bool = False
) -> Counted:
    """Estimate a request's tokens: those of the JSON of all that may show in its prompt, and an allowance for media.

    Args:
        source: the model's tokenizer; without it, a token counts as four bytes.
        api: of the request.
        body: its bytes.
        kinds: of the engines that may get it.
        at_most: whether to bound them from above instead: without a tokenizer a token counts as one byte, and a
            template as `_TEMPLATE_TOKENS` and the layout that it may give to tools.

    Raises:
        InvalidRequestError: it holds too many prompts, or is nested too deeply.
    """

    def estimated(item: Any, media: int = 0) -> int:
        text = json.dumps(item, ensure_ascii=False)
        if source is None:
            tokens = len(text.encode(errors="surrogatepass")) // (1 if at_most else 4) + 1
        else:
            tokens = renderer(source).count_text(text)
        return tokens + media * _MEDIUM_TOKENS

    fields = _fields(body, kinds=kinds)
    name = {Api.COMPLETIONS: "prompt", Api.RESPONSES: "input"}.get(api, "messages")
    prompts = fields.pop(name, None)
    is_one = api not in (Api.COMPLETIONS, Api.BATCH) or not isinstance(prompts, list)
    if is_one or not prompts or all(isinstance(item, int | float) for item in prompts):
        prompts = [prompts]
    check_number(prompts, name)
    try:
        shared = {name: value for name, value in fields.items() if name not in _UNSEEN}
        around = estimated(shared) if shared else 0
        if at_most:
            around += _TEMPLATE_TOKENS + _layout(shared)
        counts: list[int] = []
        for prompt in prompts:
            interruption.look()
            texts, ids = prompt, 0
            if isinstance(prompt, list):
                texts = [item for item in prompt if not isinstance(item, int | float)]
                ids = len(prompt) - len(texts)
            counts.append(max(1, around + ids + (estimated(*_without_media(texts)) if texts else 0)))
    except RecursionError:
        raise InvalidRequestError(_TOO_DEEP) from None
    return Counted(tuple(counts), Kind(api))


def _layout(value: Any, depth: int = 0) -> int:
    """Tokens of the line breaks and the indentation that a template adds when it prints a value by `tojson(indent=4)`.

    Tokenizers have words for runs of spaces, so four of them count as one.
    """
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    inside = sum(2 + depth + _layout(item, depth + 1) for item in items)
    return inside + 1 + depth if inside else 0


def _fields(body: bytes, api: Api | None = None, kinds: frozenset[str] = OURS) -> Json:
    """Decode a body with the engine's parser: others read large numbers or odd strings differently.

    Args:
        body: its bytes.
        api: its own, if token ids may be decoded by a faster one.
        kinds: of the engines that may get it.
    """
    if len(body) > _MOST_VALUES // 4 and values(body) > _MOST_VALUES:
        raise InvalidRequestError("The request holds too many values: lists and objects of millions are not read.")
    try:
        made = _once if reads_any_case(kinds) else None
        fields = (_with_ids(body) if api is Api.COMPLETIONS else None) or json.loads(body, object_pairs_hook=made)
    except (ValueError, RecursionError):
        raise InvalidRequestError("The request body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return fields


def _once(pairs: list[tuple[str, Any]]) -> Json:
    """An object for an engine that may read the first of two values with one name."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidRequestError("An object in the request has a name twice.")
    return made


def _with_ids(body: bytes) -> Json | None:
    """The fields of a completion whose prompt is token ids; None for any other."""
    try:
        fields = _SPLIT.decode(body)
        ids = _IDS.decode(fields.pop("prompt"))
        rest: Json = _decode(str(msgspec.json.encode(fields), "utf-8"))[0]
        return rest | {"prompt": TokenIds(ids)}
    except (KeyError, ValueError, RecursionError):
        return None


def _readable(fields: Json) -> Json:
    """Without the options of its encoding that vLLM does not read: it refuses the request, and all of it is counted."""
    for name in ("add_special_tokens", "truncate_prompt_tokens"):
        try:
            chat_encoding({name: fields[name]} if name in fields else {})
        except NeedsEngineError:
            del fields[name]
    return fields


def values(body: bytes) -> int:
    """About the number of values in a body, objects and lists weighted by the memory that they take."""
    return body.count(b",") + 2 * body.count(b"[") + 4 * body.count(b"{")


def dear_values(api: Api, body: bytes) -> int:
    """About the number of values that take time to count: of a completion, not its token ids."""
    return body.count(b'"') // 2 + 2 * body.count(b"[") if api is Api.COMPLETIONS else values(body)


def _check_shared(fields: Mapping[str, Any], unseen: Json | None = None) -> None:
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
    if number * len(shared) > MAX_REPEATED_BYTES or number * values(shared) > _MOST_VALUES:
        raise InvalidRequestError(
            f"Each of the {number} conversations brings {', '.join(names)} again, {len(shared)} bytes: "
            "send fewer conversations in one request, or less in these fields.",
            names[0],
        )


def _skips_cache(fields: Mapping[str, Any]) -> bool:
    """Whether the engine computes the whole prompt and skips its cache: it asks for the prompt's own logprobs."""
    return bool(
        fields.get("echo")
        or fields.get("prompt_logprobs") is not None
        or fields.get("prompt_logprob_token_ids") is not None
    )


def _prompts(api: Api, fields: Mapping[str, Any]) -> Sequence[ChatPrompt | TextPrompt]:
    match api:
        case Api.CHAT:
            return [chat_prompt(fields)]
        case Api.BATCH:
            _check_shared(fields)
            return batched(fields)
        case Api.COMPLETIONS:
            return [text_prompt(fields)]
        case Api.MESSAGES:
            return [from_messages(fields)]
        case Api.RESPONSES:
            return [from_responses(fields)]


def _measured(
    source: TokenizerSource, prompt: ChatPrompt | TextPrompt, max_model_len: int, *, alone: bool
) -> Sequence[MeasuredPrompt]:
    if isinstance(prompt, TextPrompt):
        return renderer(source).measure_texts(prompt, max_model_len)
    one = renderer(source).measure_chat(prompt, max_model_len)
    return [one if alone else structs.replace(one, encoded=None)]  # the tokens of all conversations would be large


def _brought(
    api: Api, fields: Mapping[str, Any], *, excludes_unused: bool
) -> tuple[Sequence[ChatPrompt | TextPrompt], frozenset[Feature]]:
    """A request's prompts, and the features they bring."""
    prompts = _prompts(api, fields)
    brought = features(_whole(prompts))
    if Feature.TOOLS not in brought or not _forbids_tools(api, fields):
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


def _forbids_tools(api: Api, fields: Mapping[str, Any]) -> bool:
    choice = fields.get("tool_choice")
    return choice == "none" if api is not Api.MESSAGES else isinstance(choice, dict) and choice.get("type") == "none"


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


_TEMPLATE_TOKENS = 512
"""Tokens that a template may write by itself: a system prompt, a date, how tools are called. None that we know comes
near it, and each message brings its role and the signs of its JSON besides."""
_MEDIUM_TOKENS = 16_384
"""Tokens of an image, a video or a recording in an estimate: of the largest image of Qwen2.5-VL and Qwen3-VL (12.8
megapixels in patches of 28 pixels, 16.8 in patches of 32). InternVL, LLaVA, Pixtral and Gemma stay under a quarter."""

_MEDIUM = frozenset(
    {
        "image_url", "video_url", "audio_url", "input_audio", "image_embeds", "video_embeds", "audio_embeds",
        "image_pil", "file", "file_data", "file_url", "source",
    }
)  # fmt: skip
"""The keys of a content part that hold a medium."""

_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text", "thinking", "refusal", "tool_use")
"""The types of content parts that hold none, whatever their keys."""


def _without_media(conversation: Any) -> tuple[Any, int]:
    """A conversation without the media in its content parts, and their number. Elsewhere such keys hold text."""
    media = 0

    def shown(item: Any, *, part: bool) -> Any:
        nonlocal media
        if not isinstance(item, dict):
            return item
        kept = {}
        for key, value in item.items():
            if part and key in _MEDIUM and item.get("type") not in _TEXTS:
                media += 1
            elif key in ("content", "output") and isinstance(value, list):
                kept[key] = [shown(inner, part=True) for inner in value]
            else:
                kept[key] = value
        return kept

    if not isinstance(conversation, list):
        return conversation, 0
    without = [shown(message, part=False) for message in conversation]
    return without, media


def brings_media(conversation: Any) -> bool:
    """Whether a message of a conversation holds an image, a video or a recording."""
    return _without_media(conversation)[1] > 0


# Keys under which media come as base64, besides those of URLs.
_MEDIA_KEYS = frozenset({"data", "file_data", "image_embeds", "audio_embeds", "video_embeds"})


def fitting(api: Api, body: bytes, max_model_len: int) -> Json:
    """The fields of a body whose texts may fit this length in tokens.

    Raises:
        PromptTooLongError: they cannot.
        InvalidRequestError: it cannot be read.
    """
    fields = _fields(body)
    try:
        if len(body) > max_model_len * _MOST_CHARS_PER_TOKEN:
            _check_length(api, {**fields, "truncate_prompt_tokens": None}, max_model_len)
    except RecursionError:
        raise InvalidRequestError(_TOO_DEEP) from None
    return fields


def _check_length(api: Api, fields: Mapping[str, Any], max_model_len: int) -> bool:
    """Whether a request is too long but asks for truncation.

    Raises:
        PromptTooLongError: it is too long and does not.
    """
    characters = sum(map(len, _texts(fields)))
    if characters <= max_model_len * _MOST_CHARS_PER_TOKEN:
        return False
    if api is Api.MESSAGES or fields.get("truncate_prompt_tokens") is None:
        raise PromptTooLongError(characters // _MOST_CHARS_PER_TOKEN)
    return True


def _texts(fields: Mapping[str, Any]) -> Iterator[str]:
    """Every string of a request that may be part of its prompt, except media given as data."""
    for name in _PROMPT_FIELDS:
        yield from _strings(fields.get(name), brings_media=name != "tools")


def _strings(item: Any, *, brings_media: bool) -> Iterator[str]:
    pending = [item]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending += [part for key, part in item.items() if not (brings_media and _is_media(key, part))]
        elif isinstance(item, list):
            pending += item


def _is_media(key: str, value: Any) -> bool:
    """Whether it is media, judged by its key too: a text may begin like any URL."""
    return isinstance(value, str) and (key in _MEDIA_KEYS or (key.endswith("url") and value.startswith("data:")))
