"""The count of a request's prompts, its source, and the ways counting fails."""

from dataclasses import field
from enum import StrEnum

import msgspec

from gateway.admission.events import Prefix
from gateway.admission.value import value
from gateway.tokens.features import Kind


class Source(StrEnum):
    """The source of a count."""

    LOCAL = "local"
    """Our own renderer and tokenizer, proven equal to the engine's; where that has no counting route, checked against
    its `usage` only."""
    ENGINE = "engine"
    """The engine itself (`/tokenize`, `/v1/messages/count_tokens`)."""
    ESTIMATE = "estimate"
    """An estimate by our own conversion, for a form that no counting route of the engine takes."""
    BOUND = "bound"
    """At most so many: the engine has no counting route, and no tokenizer is configured."""

    @property
    def exact(self) -> bool:
        """Whether it counts, so that a request may be refused for it."""
        return self in (Source.LOCAL, Source.ENGINE)


@value(frozen=True, slots=True)
class PromptCount:
    """The tokens of every prompt of a request, in order."""

    prompts: tuple[int, ...]
    source: Source
    kind: Kind
    """The kind of request: names the cause if the count turns out wrong."""
    prefix: Prefix = ()
    """Leading parts of its prompt. Empty unless it was counted locally and is a single prompt of text or ids only."""
    ids: bytes = field(default=b"", repr=False)
    """The token ids of its prompt as a JSON array; empty unless an endpoint may take them."""
    by: object = field(default=None, repr=False, compare=False)
    """The counter that made it. Another one of its model may have another tokenizer."""

    @property
    def tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(self.prompts)


class Counted(msgspec.Struct, frozen=True):
    """What a counting function returns, also from another process: the tokens of a request's prompts, in order."""

    prompts: tuple[int, ...]
    kind: Kind
    prefix: Prefix = ()
    """Leading parts of its prompt, if it has exactly one and the engine may find it in its cache."""
    ids: bytes = b""
    """The token ids of its prompt as a JSON array, if they were asked for."""


class PromptTooLongError(Exception):
    """The prompt has too many characters to fit; it was not tokenized. `at_least` is a lower bound of its tokens."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


class CountUnavailableError(Exception):
    """No count was possible: the engine that had to count did not answer. The message says why, without prompt text."""


class EngineUnreachedError(CountUnavailableError):
    """The engine took no connection: it may be gone."""


class CountingOverloadedError(Exception):
    """Too many bytes of prompts already wait to be counted; the client should retry later."""
