"""The few fields of a request that a decision needs; the rest stays the client's own bytes.

Only these fields are decoded, and only up to a sensible length. So whatever a body holds, reading it takes one pass
over its bytes and hardly any memory.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from pydantic import TypeAdapter, ValidationError

from gateway.wire.fields import MAX_TOKENS_FIELDS, NAMES, REFUSED_FIELDS, Use, named
from gateway.wire.fields import Api as Api  # noqa: PLC0414  # it is a part of a request for all who read one
from gateway.wire.shown import shown

INLINE_BYTES = 2**20
"""Largest body in bytes read on the event loop: 2.5 ms at worst. A larger one takes up to 80 ms."""
EDITED_INLINE_BYTES = 256 * 2**10
"""Largest body in bytes in which a field is replaced (`rewrites`) on the event loop: 4 ms at worst."""
MAX_SEQUENCES = 16384
"""vLLM's limit of `n` (VLLM_MAX_N_SEQUENCES); here also of prompts, and of all sequences sampled from them."""
MAX_REPEATED_BYTES = 32 * 2**20
"""Most bytes of the fields that the conversations of a batch share, counted once for each of them."""
_CONVERSATION_BYTES = 256
"""The work that a conversation of a batch is, even an empty one, as bytes of a body that take as long to count."""


class InvalidRequestError(Exception):
    """This API does not take such a body; the engine would answer 400 too.

    Attributes:
        message: what was wrong, with the offending value's type or size, never its text.
        param: the field, as OpenAI's `param`.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ForbiddenFieldError(InvalidRequestError):
    """The client set a field that only an operator may set (`REFUSED_FIELDS`)."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to one of the four APIs, as far as kvgate has to understand it."""

    api: Api
    body: bytes
    """The client's own bytes."""
    model: str | None
    stream: bool
    include_usage: bool
    """Whether the client itself asked for usage in its stream."""
    n: int
    """Sequences sampled from each prompt; the beam width for a beam search."""
    max_tokens: int | None
    """Its output limit, `max_completion_tokens` before `max_tokens`; 0 if only its prompt is read; None for none."""
    max_tokens_field: str
    """The field that sets the limit, or that would if the client set one."""
    by_default: bool
    """Whether that limit is its API's, not its own."""
    priority: int
    stream_interval: int
    """Tokens the client wants in each event of its stream. The engine may put more into one."""
    limits_twice: bool
    """Whether several fields set an output limit: who reads another one first goes by another limit."""
    tools: bool
    """Whether it brings tools."""
    background: bool
    """Whether the engine should answer at once and generate in the background."""
    stream_options: bytes
    """The client's own bytes; empty if it set none."""
    names_priority: bool
    """Whether its body has a `priority`, even null."""
    names_ids: bool
    """Whether its body has a field of token ids (`IdsField`), even null."""
    response_id: str | None = None
    """The id that its stored response is to have (`request_id` of responses), if its client set one."""
    previous_response_id: str | None = None
    """The stored response that it goes on with."""
    stored: bool = True
    """Whether its response may be stored: `store` is not false."""
    overriding: tuple[str, ...] = ()
    """The fields it sets that some kind of engine reads in place of this API's own (`Use.OVERRIDING`)."""
    adapter_field: str | None = None
    """The field in which it names an adapter besides `model`, in an engine's own way."""
    repeated_bytes: int = 0
    """Bytes that counting handles besides the body: each conversation of a batch brings the shared fields again."""

    @property
    def counted_bytes(self) -> int:
        """The work of counting it, in bytes."""
        return len(self.body) + self.repeated_bytes


COMPLETIONS_MAX_TOKENS = 16
"""Tokens that `/v1/completions` generates if the client sets no limit, as with OpenAI.

With a limit of null it generates as many in vLLM 0.32, and as many as there is room for in older ones.
"""

_WITH_INTERVAL = frozenset({Api.CHAT, Api.COMPLETIONS})
_ABSENT = msgspec.Raw(b"")
_TRUNCATED = "Input data was truncated"


def _undecoded(*names: str) -> msgspec.json.Decoder[msgspec.Struct]:
    """A decoder that finds these top-level fields, each undecoded, and skips all others."""
    fields = [(name, msgspec.Raw, _ABSENT) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Fields", fields))


_SHAPES = (("prompt", Api.COMPLETIONS), ("input", Api.RESPONSES), ("messages", Api.CHAT))
"""The field by which a body's API is recognised."""

_LONGEST = {
    "model": 4096,
    "request_id": 4096,
    "previous_response_id": 4096,
    "stream_options": 1024,
    "vllm_xargs": 64 * 2**10,
}
"""Most bytes of a decoded field, as written. A model may be named by a path."""
_LONGEST_NUMBER = 128
"""Most bytes of all other fields: numbers, and words that stand for a boolean."""

ADAPTER_FIELDS = named(Use.ADAPTER)

_READ = (
    "model", "stream", "stream_options", "n", "max_completion_tokens", "max_tokens", "max_output_tokens", "priority",
    "tools", "background", "store", "stream_interval", "echo", "vllm_xargs",
    "request_id", "previous_response_id", *ADAPTER_FIELDS,
)  # fmt: skip
_OVERRIDING = sorted(named(Use.OVERRIDING))
_FIELDS = _undecoded(*dict.fromkeys((*_READ, *REFUSED_FIELDS, *_OVERRIDING)))
_RELAYED = _undecoded("model", "priority", *ADAPTER_FIELDS)
_PROMPTS = _undecoded(*(name for name, _ in _SHAPES))
_ALL_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES = NAMES.union(_READ)
"""The fields that decide what a request is, and what it costs."""
_ENTRY = re.compile(rb"\[[ \t\r\n]*[^] \t\r\n]")
_IDS = ("prompt_token_ids", "kv_transfer_params")
_NULL = b"null"
_TRUTH = TypeAdapter(bool).validate_python
_WHOLE = TypeAdapter(int).validate_python
"""vLLM's models are pydantic's, in its lax mode."""


def parse(api: Api, body: bytes) -> GenerationRequest:
    """Read a request's body.

    Raises:
        ForbiddenFieldError: it sets a field of `REFUSED_FIELDS`.
        InvalidRequestError: it is not a JSON object, or a field has the wrong type or range.
    """
    fields = _read(_FIELDS, body)
    for name in REFUSED_FIELDS:
        if getattr(fields, name) is not _ABSENT and _given(fields, name):
            raise ForbiddenFieldError(f"`{name}` cannot be set by a client: {REFUSED_FIELDS[name]}.", name)
    forbid_transfer(_decode(fields, "vllm_xargs"))

    stream = _boolean(fields, "stream")
    if stream and api is Api.BATCH:  # the engine would answer with the last piece of each conversation's text
        raise InvalidRequestError("`stream` must be false: a batch is answered as a whole.", "stream")
    options = _decode(fields, "stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequestError("`stream_options` must be an object.", "stream_options")
    n = _sequences(fields)
    max_tokens, max_tokens_field = _max_tokens(api, fields)
    by_default = max_tokens is None and api is Api.COMPLETIONS and _raw(fields, "max_tokens") is _ABSENT
    return GenerationRequest(
        api=api,
        body=body,
        model=_model(fields),
        stream=stream,
        include_usage=truth((options or {}).get("include_usage"), "stream_options"),
        n=n,
        max_tokens=COMPLETIONS_MAX_TOKENS if by_default else max_tokens,
        max_tokens_field=max_tokens_field,
        by_default=by_default,
        priority=_integer(fields, "priority") or 0,
        stream_interval=max(1, _integer(fields, "stream_interval") or 1) if api in _WITH_INTERVAL else 1,
        limits_twice=sum(_given(fields, name) for name in MAX_TOKENS_FIELDS[api]) > 1,
        tools=_ENTRY.match(_raw(fields, "tools")) is not None,
        background=api is Api.RESPONSES and _boolean(fields, "background"),
        stream_options=bytes(_raw(fields, "stream_options")),
        names_priority=_raw(fields, "priority") is not _ABSENT,
        names_ids=any(_raw(fields, name) is not _ABSENT for name in _IDS),
        response_id=_text(fields, "request_id") if api is Api.RESPONSES else None,
        previous_response_id=_text(fields, "previous_response_id") if api is Api.RESPONSES else None,
        stored=api is not Api.RESPONSES or not _given(fields, "store") or _boolean(fields, "store"),
        overriding=tuple(name for name in _OVERRIDING if _given(fields, name) and name not in MAX_TOKENS_FIELDS[api]),
        adapter_field=_adapter_field(fields),
        repeated_bytes=_repeated(body) if api is Api.BATCH else 0,
    )


def forbid_transfer(extra: object) -> None:
    """Check `vllm_xargs`.

    vLLM 0.32 takes the parameters of a transfer from there, too (`v1/request.py`). One that is no object ends an engine
    that has a connector.

    Raises:
        ForbiddenFieldError: it has them.
    """
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if isinstance(extra, dict) and name in extra:
            message = f"`{name}` cannot be set by a client, not in `vllm_xargs` either: {REFUSED_FIELDS[name]}."
            raise ForbiddenFieldError(message, "vllm_xargs")


class Relayed(NamedTuple):
    """What is read of a relayed request, as of a `GenerationRequest`."""

    model: str | None
    priority: int = 0
    adapter_field: str | None = None


def relayed(body: bytes) -> Relayed:
    """Read the JSON body of a relayed request.

    Raises:
        ForbiddenFieldError: it would go before all others.
        InvalidRequestError: it is not a JSON object, or its `model` or `priority` is none.
    """
    fields = _read(_RELAYED, body)
    priority = _integer(fields, "priority") or 0
    if priority < 0:
        raise ForbiddenFieldError(
            "`priority` must be at least 0: below it, this would go before all others.", "priority"
        )
    return Relayed(_model(fields), priority, _adapter_field(fields))


def told_by(body: bytes) -> Api:
    """The API of a body, by the field that holds its prompt; chat if no field does.

    `/v1/messages` and a batch cannot be told from chat.
    """
    try:
        prompts = _read(_PROMPTS, body)
    except InvalidRequestError:
        return Api.CHAT  # reading it will say what is wrong
    return next((api for name, api in _SHAPES if _raw(prompts, name) is not _ABSENT), Api.CHAT)


class Edits(NamedTuple):
    """All that kvgate changes in a client's body, besides the model's name (`renamed`) and token ids (`token_ids`)."""

    usage: bool
    """Set `stream_options.include_usage` for the client. Without it `continuous_usage_stats` has no effect, so a client
    that set only the latter expects no usage."""
    priority: int | None
    """The request's band. An engine that schedules by it must not trust the client's value. `/v1/messages` has no such
    field: there only the header carries the band, and only kvgate sets that header. None: no priority at all."""
    max_tokens: int | None = None
    """Set this output limit: the client set none, and its tenant has one, lower than its API's, or its engine fails all
    that runs when its KV cache runs out. Or the client set it in a field that its engine does not read."""


def edited(body: bytes, request: GenerationRequest, edits: Edits) -> bytes:
    """The body of a request for an endpoint: the client's own bytes, apart from these edits. Raises as `renamed`."""
    added: dict[str, bytes] = {}
    if edits.usage:
        options = {} if request.stream_options in (b"", _NULL) else dict(_ALL_FIELDS.decode(request.stream_options))
        options.pop("continuous_usage_stats", None)
        options["include_usage"] = msgspec.Raw(b"true")
        added["stream_options"] = msgspec.json.encode(options)
    if edits.priority is not None and request.priority != edits.priority and request.api is not Api.MESSAGES:
        added["priority"] = b"%d" % edits.priority
    if edits.max_tokens is not None:
        added[MAX_TOKENS_FIELDS[request.api][-1]] = b"%d" % edits.max_tokens
    dropped = edits.priority is None and request.names_priority
    if not (added or dropped):
        return body
    if rewrites(request, edits):
        fields = _every(body) | {name: msgspec.Raw(value) for name, value in added.items()}
        if dropped:
            del fields["priority"]
        return msgspec.json.encode(fields)
    return appended(body, added)


def renamed(body: bytes, model: str) -> bytes:
    """The body of a request to another model: the client's own bytes, apart from `model`.

    Raises:
        InvalidRequestError: the name of a field is not UTF-8.
    """
    return msgspec.json.encode(_every(body) | {"model": msgspec.Raw(msgspec.json.encode(model))})


def appended(body: bytes, added: Mapping[str, bytes]) -> bytes:
    """A JSON object with these fields, which it does not have yet, at its end."""
    pieces = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in added.items())
    comma = b"," if b'"' in body else b""  # it has other fields
    return b"".join((memoryview(body)[: body.rfind(b"}")], comma, pieces, b"}"))  # one copy: it may have 32 MB


def rewrites(request: GenerationRequest, edits: Edits) -> bool:
    """Whether these edits may replace a field and do not only add one: then all top-level fields must be found."""
    options = edits.usage and request.stream_options != b""
    priority = request.priority != edits.priority and request.names_priority
    return options or priority or edits.max_tokens is not None  # a limit of null may be there


def refuse_other_case(body: bytes) -> None:
    """Refuse a field that some servers take for another one, as its name differs only in the case of letters.

    They are Go's (`encoding/json`). Of a name that is there twice they may read the first: null changes nothing, and a
    list is read into the one before.

    Raises:
        ForbiddenFieldError: the body has one.
        InvalidRequestError: the name of a field is not UTF-8, or there twice.
    """
    fields = _every(body)
    if body.count(b'"') != sum([bytes(value).count(b'"') for value in fields.values()]) + 2 * len(fields):
        raise InvalidRequestError("The name of a field is there twice, or has a quotation mark in it.")
    for name in fields:
        if name not in _NAMES and (folded := name.casefold()) in _NAMES:
            raise ForbiddenFieldError(f"A field's name is `{folded}` in other letters: write `{folded}`.", folded)


def _every(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _ALL_FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # names that are only skipped are not decoded
        raise InvalidRequestError("The request body has a field whose name is not UTF-8.") from None


def _raw(fields: msgspec.Struct, name: str) -> msgspec.Raw:
    raw: msgspec.Raw = getattr(fields, name)
    return raw


def _read(decoder: msgspec.json.Decoder[msgspec.Struct], body: bytes) -> msgspec.Struct:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise InvalidRequestError("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {_fault(error)}.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None


def _fault(error: Exception) -> str:
    """What is wrong. Of half a character at a text's end, where a client cut it, msgspec says that it is truncated."""
    said = str(error)
    return 'it ends too early, or has half of a surrogate pair (such as "\\ud83d")' if said == _TRUNCATED else said


def _given(fields: msgspec.Struct, name: str) -> bool:
    """Whether a field is there and not null."""
    raw = getattr(fields, name)
    return raw is not _ABSENT and bytes(memoryview(raw)[:5]) != _NULL


def _model(fields: msgspec.Struct) -> str | None:
    model = _decode(fields, "model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequestError("`model` must be a string.", "model")
    return model or None  # vLLM takes "" as none


def _adapter_field(fields: msgspec.Struct) -> str | None:
    return next((name for name in ADAPTER_FIELDS if _given(fields, name)), None)


def _text(fields: msgspec.Struct, name: str) -> str | None:
    """A string; None for what the engine will refuse as none."""
    value = _decode(fields, name)
    return value if isinstance(value, str) else None


def _repeated(body: bytes) -> int:
    """What the conversations of a batch repeat, at most: each begins with a bracket, but not each bracket is one."""
    conversations = bytes(_raw(_read(_PROMPTS, body), "messages"))
    number = min(conversations.count(b"[") - 1, MAX_SEQUENCES)
    return min(max(0, number) * (len(body) - len(conversations) + _CONVERSATION_BYTES), MAX_REPEATED_BYTES)


def _sequences(fields: msgspec.Struct) -> int:
    n = _integer(fields, "n")
    if n is None:
        return 1
    if not 1 <= n <= MAX_SEQUENCES:
        raise InvalidRequestError(f"`n` must be between 1 and {MAX_SEQUENCES}, got {shown(n)}.", "n")
    return n


def _max_tokens(api: Api, fields: msgspec.Struct) -> tuple[int | None, str]:
    names = MAX_TOKENS_FIELDS[api]
    for name in names:
        value = _integer(fields, name)
        if value is not None:
            if value < 1 and not (value == 0 and api is Api.COMPLETIONS and _boolean(fields, "echo")):
                raise InvalidRequestError(f"`{name}` must be at least 1, got {shown(value)}.", name)
            return value, name
    if api is Api.MESSAGES:
        raise InvalidRequestError("`max_tokens` is required.", "max_tokens")
    return None, names[0]


def _decode(fields: msgspec.Struct, name: str) -> Any:
    raw = getattr(fields, name)
    return None if raw is _ABSENT else decoded(raw, name)


def decoded(raw: bytes | msgspec.Raw, name: str) -> Any:
    """The value of a field.

    Raises:
        InvalidRequestError: it is not JSON, or longer than a field of this name may be.
    """
    longest = _LONGEST.get(name, _LONGEST_NUMBER)
    if len(raw) > longest:
        raise InvalidRequestError(f"`{name}` may be {longest} bytes long, and has {len(raw)}.", name)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"`{name}` is not valid JSON: {error}.", name) from None


def _boolean(fields: msgspec.Struct, name: str) -> bool:
    return truth(_decode(fields, name), name)


def truth(value: Any, name: str) -> bool:
    """A boolean as vLLM reads it: true, 1, 1.0, "true", "yes", "on" and their opposites; null is false.

    Raises:
        InvalidRequestError: it is none.
    """
    if value is None or value is True or value is False:
        return value is True
    try:
        return _TRUTH(value)
    except ValidationError:
        raise InvalidRequestError(f"`{name}` must be true or false.", name) from None


def _integer(fields: msgspec.Struct, name: str) -> int | None:
    return whole(_decode(fields, name), name)


def whole(value: Any, name: str) -> int | None:
    """An integer as vLLM reads it: 5, 5.0, "5", "+5", "5_000" and true are integers.

    Raises:
        InvalidRequestError: it is none.
    """
    if value is None or type(value) is int:
        return value
    try:
        return _WHOLE(value)
    except ValidationError:
        raise InvalidRequestError(f"`{name}` must be an integer.", name) from None
