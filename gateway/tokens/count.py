"""The one question this package answers, and the ways it can be answered."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.admission.events import Prefix
from gateway.tokens.features import Kind
from gateway.wire.request import GenerationRequest


class Source(StrEnum):
    """Who counted."""

    LOCAL = "local"
    """Our own renderer and tokenizer, proven equal to the engine's."""
    ENGINE = "engine"
    """The engine itself (`/tokenize`, `/v1/messages/count_tokens`)."""
    ESTIMATE = "estimate"
    """Nobody exactly: our conversion of a form that the engine offers no count for."""


@dataclass(frozen=True, slots=True)
class PromptCount:
    """The tokens of every prompt of a request, in order."""

    prompts: tuple[int, ...]
    source: Source
    kind: Kind
    """What kind of request it was: names the cause when a count turns out wrong."""
    prefix: Prefix = ()
    """Leading parts of its prompt. Empty unless it was counted locally and has one prompt, all of it text or ids."""


class PromptTooLongError(Exception):
    """The prompt's characters alone cannot fit: nothing was tokenized. `at_least` is a lower bound of its tokens."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


class CountUnavailableError(Exception):
    """Nobody could count: the engine that had to did not answer. The message says why, without any prompt text."""


class CountingOverloadedError(Exception):
    """Too many bytes of prompts wait to be counted already; the client should come back later."""


class TokenCounter(Protocol):
    """Counts the prompts of one model."""

    async def count(self, request: GenerationRequest, *, flow: str, max_model_len: int) -> PromptCount:
        """Count without ever blocking the event loop.

        Args:
            request: the request; its `body` is what the engine will get.
            flow: whose work this is, for a fair share of the counting pool.
            max_model_len: tokens; a prompt whose characters cannot fit it is refused untokenized.

        Raises:
            InvalidRequestError: the engine would refuse the request with 400 while building its prompt.
            PromptTooLongError: refused before tokenizing.
            CountingOverloadedError: too many bytes wait to be counted.
            CountUnavailableError: neither we nor an engine could count.
        """

    def settle(self, count: PromptCount, usage_prompt_tokens: int) -> None:
        """Hold a count against what the engine's `usage.prompt_tokens` said; drift is counted and acted on."""
