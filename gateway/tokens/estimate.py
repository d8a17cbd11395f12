"""The estimate of a request's tokens, and their bound, where nobody can count them."""

import json
from typing import Any

from gateway.tokens import interruption
from gateway.tokens.body_fields import TOO_DEEP, decoded
from gateway.tokens.count import Counted
from gateway.tokens.features import Kind
from gateway.tokens.fields import OURS
from gateway.tokens.normalise import check_number
from gateway.tokens.render import TokenizerSource, renderer
from gateway.wire.fields import OTHER_FIELDS, Use, named
from gateway.wire.request import Api, InvalidRequestError

_UNSEEN = OTHER_FIELDS.union(*map(named, Use)) - {"response_format", "json_schema"}
"""The fields that surely show in no prompt."""
_SIGNS = 4
"""Tokens of the signs between a name, its value and the next, at most."""


def estimate_body(
    source: TokenizerSource | None,
    api: Api,
    body: bytes,
    *,
    kinds: frozenset[str] = OURS,
    at_most: bool = False,
    files: bytes | None = None,
) -> Counted:
    """Estimate a request's tokens: those of the JSON of all that may show in its prompt, and an allowance for media.

    Args:
        source: the model's tokenizer; without it, a token counts as four bytes.
        api: of the request.
        body: its bytes.
        kinds: of the engines that may get it.
        at_most: whether to bound them from above instead: without a tokenizer a token counts as one byte, and a
            template as `_TEMPLATE_TOKENS` and the layout that it may give to tools.
        files: as for `gateway.tokens.render.renderer`.

    Raises:
        TokenizerUnavailableError, NeedsEngineError: as `gateway.tokens.render.renderer`.
        InvalidRequestError: it holds too many prompts, or is nested too deeply.
    """

    def estimated(item: Any, media: int = 0) -> int:
        text = json.dumps(item, ensure_ascii=False)
        if source is None:
            tokens = len(text.encode(errors="surrogatepass")) // (1 if at_most else 4) + 1
        else:
            tokens = renderer(source, files).count_text(text)
        return tokens + media * _MEDIUM_TOKENS

    fields = decoded(body, kinds=kinds)
    name = {Api.COMPLETIONS: "prompt", Api.RESPONSES: "input"}.get(api, "messages")
    prompts = fields.pop(name, None)
    is_one = api not in (Api.COMPLETIONS, Api.BATCH) or not isinstance(prompts, list)
    if is_one or not prompts or all(isinstance(item, int | float) for item in prompts):
        prompts = [prompts]
    check_number(prompts, name)
    try:
        shared = {name: value for name, value in fields.items() if name not in _UNSEEN}
        # One by one: the JSON of a text alone is not joined to another's, which takes its memory twice.
        around = sum(estimated(name) + estimated(value) + _SIGNS for name, value in shared.items())
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
        raise InvalidRequestError(TOO_DEEP) from None
    return Counted(tuple(counts), Kind(api))


def _layout(value: Any, depth: int = 0) -> int:
    """Tokens of the line breaks and the indentation that a template adds when it prints a value by `tojson(indent=4)`.

    Tokenizers have words for runs of spaces, so four of them count as one.
    """
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    inside = sum(2 + depth + _layout(item, depth + 1) for item in items)
    return inside + 1 + depth if inside else 0


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
