"""A length that no prompt of a body can be below, from its characters alone: what cannot fit is not tokenized."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.tokens.body_fields import TOO_DEEP, decoded
from gateway.tokens.count import PromptTooLongError
from gateway.tokens.messages import Json
from gateway.wire.request import Api, InvalidRequestError

# No prompt's average comes near it: except for runs of blanks, vocabularies have no token that long.
MOST_CHARS_PER_TOKEN = 256


_PROMPT_FIELDS = (
    "system", "instructions", "messages", "input", "prompt", "suffix", "tools", "documents", "chat_template_kwargs",
)  # fmt: skip


# Keys under which media come as base64, besides those of URLs.
_MEDIA_KEYS = frozenset({"data", "file_data", "image_embeds", "audio_embeds", "video_embeds"})


def fitting(api: Api, body: bytes, max_model_len: int) -> Json:
    """The fields of a body whose texts may fit this length in tokens.

    Raises:
        PromptTooLongError: they cannot.
        InvalidRequestError: it cannot be read.
    """
    fields = decoded(body)
    try:
        if len(body) > max_model_len * MOST_CHARS_PER_TOKEN:
            check_length(api, {**fields, "truncate_prompt_tokens": None}, max_model_len)
    except RecursionError:
        raise InvalidRequestError(TOO_DEEP) from None
    return fields


def check_length(api: Api, fields: Mapping[str, Any], max_model_len: int) -> bool:
    """Whether a request is too long but asks for truncation.

    Raises:
        PromptTooLongError: it is too long and does not.
    """
    characters = sum(map(len, _texts(fields)))
    if characters <= max_model_len * MOST_CHARS_PER_TOKEN:
        return False
    if api is Api.MESSAGES or fields.get("truncate_prompt_tokens") is None:
        raise PromptTooLongError(characters // MOST_CHARS_PER_TOKEN)
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
