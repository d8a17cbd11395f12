"""The port of token counting: the count of a request's prompts, its source, and the ways counting fails."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gateway.admission.events import Prefix
from gateway.tokens.features import Kind
from gateway.wire.request import GenerationRequest


class Source(StrEnum):
    """The source of a count."""

    LOCAL = "local"
    """Our own renderer and tokenizer, proven equal to the engine's."""
    ENGINE = "engine"
    """The engine itself (`/tokenize`, `/v1/messages/count_tokens`)."""
    ESTIMATE = "estimate"
    """An estimate by our own conversion, for a form that no counting route of the engine takes."""


@dataclass(frozen=True, slots=True)
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

    @property
    def tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(self.prompts)


class PromptTooLongError(Exception):
    """The prompt has too many characters to fit; it was not tokenized. `at_least` is a lower bound of its tokens."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


class CountUnavailableError(Exception):
    """No count was possible: the engine that had to count did not answer. The message says why, without prompt text."""


class CountingOverloadedError(Exception):
    """Too many bytes of prompts already wait to be counted; the client should retry later."""


class TokenCounter(Protocol):
    """Counts the prompts of one model."""

    async def count(self, request: GenerationRequest, *, flow: str, max_model_len: int) -> PromptCount:
        """Count without ever blocking the event loop.

        Args:
            request: the request; its `body` is what the engine will get.
            flow: of the request, for its fair share of the counting pool.
            max_model_len: in tokens; a prompt with too many characters to fit it is refused untokenized.

        Raises:
            InvalidRequestError: the engine would refuse the request with 400 while building its prompt.
            PromptTooLongError: refused before tokenizing.
            CountingOverloadedError: too many bytes wait to be counted.
            CountUnavailableError: neither kvgate nor an engine could count.
        """

    def settle(self, count: PromptCount, usage_prompt_tokens: int, *, handed_to: str | None = None) -> None:
        """Compare a count with the engine's `usage.prompt_tokens`; count a drift and act on it.

        `handed_to`: base URL of the endpoint that got the prompt's token ids, and only says how many it got.
        """
