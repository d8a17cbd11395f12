"""What an engine says that it counted: one reading for each API, from vLLM 0.32's sources."""

from dataclasses import dataclass

import msgspec

from gateway.wire.request import Api


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine counted: all tokens of the prompt, cached or not, and all that it generated."""

    prompt_tokens: int
    completion_tokens: int


class UsageFields(msgspec.Struct):
    """A `usage` object of any of the APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def read(self, api: Api) -> Usage:
        """What it says in the words of its API."""
        prompt, completion = _FIELDS[api]
        return Usage(sum(getattr(self, name) or 0 for name in prompt), getattr(self, completion) or 0)


_FIELDS: dict[Api, tuple[tuple[str, ...], str]] = {
    # `prompt_tokens` holds what `prompt_tokens_details.cached_tokens` tells apart (serve/engine/protocol.py).
    Api.CHAT: (("prompt_tokens",), "completion_tokens"),
    Api.BATCH: (("prompt_tokens",), "completion_tokens"),
    Api.COMPLETIONS: (("prompt_tokens",), "completion_tokens"),
    # So does `input_tokens` with `input_tokens_details.cached_tokens` (openai/responses/serving.py).
    Api.RESPONSES: (("input_tokens",), "output_tokens"),
    # Here it holds neither of the others, which `--enable-prompt-tokens-details` adds (anthropic/serving.py).
    Api.MESSAGES: (("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), "output_tokens"),
}
"""The fields that together are the prompt, and the one that is what was generated."""
