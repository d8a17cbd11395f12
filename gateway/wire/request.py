"""What kvgate reads of a generation request: the few fields a decision needs; the rest stays the client's own bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

MAX_SEQUENCES = 16384
"""vLLM's own limit of `n` (VLLM_MAX_N_SEQUENCES)."""


class Api(StrEnum):
    """The APIs whose requests are admitted."""

    CHAT = "chat"
    BATCH = "batch"
    """Several conversations in one request, answered as a whole."""
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class InvalidRequestError(Exception):
    """The body is not a request this API takes; the engine would answer 400 too.

    Attributes:
        message: what was wrong, with the offending value's type or size, never its text.
        param: the field, as OpenAI's `param`.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ForbiddenFieldError(InvalidRequestError):
    """The client set a field that it may not set (`REFUSED_FIELDS`)."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to one of the four APIs, as far as it has to be understood."""

    api: Api
    body: bytes
    """The client's own bytes."""
    fields: Mapping[str, msgspec.Raw]
    """Every top-level field, undecoded."""
    model: str | None
    stream: bool
    include_usage: bool
    """Whether the client itself asked for usage in its stream."""
    n: int
    """Sequences sampled from each prompt; the beam width for a beam search."""
    max_tokens: int | None
    """What the client asked for, `max_completion_tokens` before `max_tokens`; 0 where only its prompt is read."""
    priority: int
    stream_interval: int
    """Tokens that the client wants in each event of its stream; the engine may put more into one."""
    tools: bool
    """Whether it brings tools."""

    def field(self, name: str) -> Any:
        """A top-level field decoded, None where it is absent or null.

        Raises:
            InvalidRequestError: it is not valid JSON.
        """
        return _decode(self.fields, name)


MAX_TOKENS_FIELDS: dict[Api, tuple[str, ...]] = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.BATCH: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
"""Where each API puts the output limit; the first that is set wins, as in vLLM."""

REFUSED_FIELDS: dict[str, str] = {
    "kv_transfer_params": "it would replace the prompt that was counted",
    "chat_template": "the prompt is counted with the template the model is served with",
    "prompt_embeds": "its tokens cannot be counted before an engine reads it; send text or token ids",
    "previous_input_messages": "its tokens cannot be counted before an engine reads it; send the messages as `input`",
}
"""Fields a client may not set, and why."""

_WITH_INTERVAL = frozenset({Api.CHAT, Api.COMPLETIONS})
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = b"null"
_BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_TRUE = msgspec.Raw(b"true")


def parse(api: Api, body: bytes) -> GenerationRequest:
    """Read a request's body.

    Raises:
        ForbiddenFieldError: it sets a field of `REFUSED_FIELDS`.
        InvalidRequestError: it is not a JSON object, or a field that was read has the wrong type or range.
    """
    try:
        fields = _FIELDS.decode(body)
    except msgspec.ValidationError:
        raise InvalidRequestError("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None
    for name, reason in REFUSED_FIELDS.items():
        if name in fields and bytes(fields[name]) != _NULL:
            raise ForbiddenFieldError(f"`{name}` cannot be set by a client: {reason}.", name)

    stream = _boolean(fields, "stream")
    if stream and api is Api.BATCH:  # the engine would answer with the last piece of each conversation's text
        raise InvalidRequestError("`stream` must be false: a batch is answered as a whole.", "stream")
    options = _decode(fields, "stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequestError("`stream_options` must be an object.", "stream_options")
    model = _decode(fields, "model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequestError("`model` must be a string.", "model")
    return GenerationRequest(
        api=api,
        body=body,
        fields=fields,
        model=model,
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
        n=_sequences(fields),
        max_tokens=_max_tokens(api, fields),
        priority=_integer(fields, "priority") or 0,
        stream_interval=max(1, _integer(fields, "stream_interval") or 1) if api in _WITH_INTERVAL else 1,
        tools=_has_entries(fields, "tools"),
    )


def edited(request: GenerationRequest, *, usage: bool, priority: int) -> bytes:
    """The body as an endpoint gets it: the client's own bytes, but for these two edits.

    Args:
        request: what the client sent.
        usage: set `stream_options.include_usage` on its behalf. `continuous_usage_stats` has no effect without that, so
            a client that set only the former does not expect it either.
        priority: its band. An engine that schedules by it must not take the client's word. `/v1/messages` has no such
            field: there only the header tells it, and nobody but kvgate sets that.
    """
    prioritized = request.priority != priority and request.api is not Api.MESSAGES
    if not usage and not prioritized:
        return request.body
    fields = dict(request.fields)
    if usage:
        given = fields.get("stream_options")
        options = dict(_FIELDS.decode(given)) if given is not None and bytes(given) != _NULL else {}
        options.pop("continuous_usage_stats", None)
        options["include_usage"] = _TRUE
        fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
    if prioritized:
        fields["priority"] = msgspec.Raw(b"%d" % priority)
    return msgspec.json.encode(fields)


def _sequences(fields: Mapping[str, msgspec.Raw]) -> int:
    n = _integer(fields, "n")
    if n is None:
        return 1
    if not 1 <= n <= MAX_SEQUENCES:
        raise InvalidRequestError(f"`n` must be between 1 and {MAX_SEQUENCES}, got {_shown(n)}.", "n")
    return n


def _max_tokens(api: Api, fields: Mapping[str, msgspec.Raw]) -> int | None:
    for name in MAX_TOKENS_FIELDS[api]:
        value = _integer(fields, name)
        if value is not None:
            if value < 1 and not (value == 0 and api is Api.COMPLETIONS and _boolean(fields, "echo")):
                raise InvalidRequestError(f"`{name}` must be at least 1, got {_shown(value)}.", name)
            return value
    if api is Api.MESSAGES:
        raise InvalidRequestError("`max_tokens` is required.", "max_tokens")
    return None


def _decode(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"`{name}` is not valid JSON: {error}.", name) from None


def _has_entries(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a field is a list with something in it, told without decoding it."""
    raw = bytes(fields.get(name, b""))
    return raw[:1] == b"[" and raw[1:-1].strip() != b""


def _boolean(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """As pydantic's lax mode reads a boolean: true, 1, 1.0, "true", "yes", "on" and their opposites."""
    value = _decode(fields, name)
    if isinstance(value, str):
        value = _BOOLEAN_WORDS.get(value.lower())
        if value is None:
            raise InvalidRequestError(f"`{name}` must be true or false.", name)
    if value is not None and (not isinstance(value, (bool, int, float)) or value not in {0, 1}):
        raise InvalidRequestError(f"`{name}` must be true or false.", name)
    return bool(value)


def _integer(fields: Mapping[str, msgspec.Raw], name: str) -> int | None:
    """As pydantic's lax mode, which vLLM uses, reads an integer: 5, 5.0, "5" and true are integers."""
    value = _decode(fields, name)
    if value is None or isinstance(value, int):
        return None if value is None else int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        try:
            return int(value)
        except ValueError:  # more digits than Python converts
            pass
    raise InvalidRequestError(f"`{name}` must be an integer.", name)


def _shown(value: int) -> str:
    """A number for a message, however absurd."""
    return str(value) if -(10**18) < value < 10**18 else "a number out of all range"
