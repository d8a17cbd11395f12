"""What kvgate reads of a generation request: the few fields a decision needs; the rest stays the client's own bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class Api(StrEnum):
    """The four APIs whose requests are admitted."""

    CHAT = "chat"
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
    """What the client asked for, `max_completion_tokens` before `max_tokens`."""
    priority: int

    def field(self, name: str) -> Any:
        """A top-level field decoded, None where it is absent or null.

        Raises:
            InvalidRequestError: it is not valid JSON.
        """
        raw = self.fields.get(name)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(f"{name}: not valid JSON ({error})", name) from None


class _Number(msgspec.Struct):
    """Only to give the lax integer decoder a name."""


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAX_TOKENS_FIELDS: dict[Api, tuple[str, ...]] = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
