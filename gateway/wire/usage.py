"""The engine's own token counts, read from each API's `usage` as vLLM 0.32's sources fill it.

`gateway.wire.request.edited` asks for them where a client does not.
"""

import re

import msgspec

from gateway.wire.request import Api

_MOST = 2**31
"""Tokens: no engine counts as many."""
_ABSENT = msgspec.Raw(b"null")
_CACHED = re.compile(rb'"cached_tokens":\s*(\d{1,10})(?!\d)')


class Usage(msgspec.Struct, frozen=True):
    """The engine's count: all tokens of the prompt, cached or not, and all generated tokens.

    `cached_tokens`: those of the prompt that it found in its prefix cache; None where it does not say.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


class UsageFields(msgspec.Struct):
    """A `usage` object of any of the APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    total_tokens: int | None = None
    image_tokens: int | None = None
    """Of Cohere's `billed_units`, which count here what they do not count as `input_tokens`."""
    prompt_tokens_details: msgspec.Raw = _ABSENT
    input_tokens_details: msgspec.Raw = _ABSENT
    """Engines differ in what these have, and no shape of them must cost the counts beside them."""

    def read(self, api: Api) -> Usage | None:
        """Read the fields as this API fills them; None if the values are impossible."""
        prompt, completion = _FIELDS[api]
        counted = sum(getattr(self, name) or 0 for name in prompt), getattr(self, completion) or 0
        return Usage(*counted, self._cached()) if all(0 <= tokens < _MOST for tokens in counted) else None

    def _cached(self) -> int | None:
        found = _CACHED.search(self.prompt_tokens_details) or _CACHED.search(self.input_tokens_details)
        cached = self.cache_read_input_tokens if found is None else int(found[1])
        return cached if cached is not None and 0 <= cached < _MOST else None

    def read_any(self) -> Usage | None:
        """Read the fields of an answer of any other API; None if it counts no tokens, or the values are impossible."""
        completion = self.completion_tokens or self.output_tokens or 0
        billed = (self.input_tokens or 0) + (self.image_tokens or 0)
        prompt = self.prompt_tokens or billed or (self.total_tokens or 0) - completion
        if not (prompt or completion) or not all(0 <= tokens < _MOST for tokens in (prompt, completion)):
            return None
        return Usage(prompt, completion)


_FIELDS: dict[Api, tuple[tuple[str, ...], str]] = {
    # `prompt_tokens` includes `prompt_tokens_details.cached_tokens` (serve/engine/protocol.py).
    Api.CHAT: (("prompt_tokens",), "completion_tokens"),
    Api.BATCH: (("prompt_tokens",), "completion_tokens"),
    Api.COMPLETIONS: (("prompt_tokens",), "completion_tokens"),
    # `input_tokens` includes `input_tokens_details.cached_tokens` (openai/responses/serving.py).
    Api.RESPONSES: (("input_tokens",), "output_tokens"),
    # Here it includes neither of the others, which `--enable-prompt-tokens-details` adds (anthropic/serving.py).
    Api.MESSAGES: (("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), "output_tokens"),
}
"""The fields that add up to the prompt, and the field of generated tokens."""
