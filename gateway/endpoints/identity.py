"""PURE. The identity of an endpoint, from `/v1/models` and `/version`: served names, tokenizer, length, version."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from gateway.wire.engine_kinds import VLLM

KVGATE = "this is a kvgate, not a vLLM: give the URL of the vLLM itself, and each of them a port of its own"
_LONGEST_NAME = 4096
"""Characters. A name may be a path; names appear in labels and log lines."""
_LONGEST = 2**31 - 1
"""Tokens: vLLM keeps positions as 32 bits."""


class UnidentifiedError(Exception):
    """The answer is not a model list of vLLM's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An endpoint's answers about itself."""

    names: tuple[str, ...]
    """Served names of the base model, as in `--served-model-name`; its metrics are labelled with the first."""
    loras: tuple[str, ...]
    """Names of the LoRA adapters it serves now."""
    root: str | None
    """Folder or hub id that the model was loaded from; its tokenizer is there."""
    max_model_len: int
    """Tokens."""
    version: str | None
    """The engine's version; None if it does not tell."""
    kind: str = VLLM.name
    """Its kind, one of `KINDS`."""
    slots: int | None = None
    """Requests that it runs at once, if it tells."""
    kv_tokens: int | None = None
    """Tokens of its KV cache, if it tells by itself; what its metrics tell is not here."""
    shares_prefix: bool = False
    """Whether requests with a common beginning hold it once, if it tells by itself."""
    replaced: int = 0
    """How often another process was seen to answer at its address in place of one that took traffic."""

    def is_as(self, other: "Identity") -> bool:
        """Whether this may be the same engine: all but its names and adapters is equal."""
        return replace(self, names=(), loras=()) == replace(other, names=(), loras=())


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: Annotated[int, msgspec.Meta(le=_LONGEST)] | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Version(msgspec.Struct):
    version: str
    name: str | None = None
    """`kvgate` if a kvgate answers."""


_models = msgspec.json.Decoder(_Models)
_version = msgspec.json.Decoder(_Version)


def identify(models: bytes, version: bytes | None) -> Identity:
    """Read the two answers; `version` is None if the endpoint gave none.

    A LoRA adapter names its base model as `parent`; a base model has none.

    Raises:
        UnidentifiedError: it is a kvgate, or the model list is malformed, without a base model or without a length.
    """
    if version is not None and is_kvgate(version):
        raise UnidentifiedError(KVGATE)
    try:
        cards = _models.decode(models).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnidentifiedError("this is no vLLM: /v1/models answered no list of models") from error
    check_names([card.id for card in cards])
    bases = [card for card in cards if card.parent is None]
    if not bases:
        raise UnidentifiedError("/v1/models lists no base model")
    lengths = [card.max_model_len for card in bases if card.max_model_len is not None]
    if not lengths or min(lengths) < 1:
        raise UnidentifiedError(
            "this is an OpenAI API, but no vLLM: /v1/models tells no max_model_len. If it is an engine that kvgate "
            "knows, give the `kind` of the endpoint"
        )
    return Identity(
        names=tuple(card.id for card in bases),
        loras=tuple(card.id for card in cards if card.parent is not None),
        root=bases[0].root,
        max_model_len=min(lengths),
        version=_read_version(version),
    )


def lora_paths(models: bytes) -> dict[str, str | None]:
    """The path of each LoRA adapter in a model list, if it has one. Empty for any other answer."""
    try:
        cards = _models.decode(models).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {card.id: card.root for card in cards if card.parent is not None}


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """These names, each once.

    Raises:
        UnidentifiedError: one is too long for a label.
    """
    if any(len(name) > _LONGEST_NAME for name in names):
        raise UnidentifiedError(f"/v1/models lists a name of more than {_LONGEST_NAME} characters")
    return tuple(dict.fromkeys(names))


def is_kvgate(version: bytes) -> bool:
    """Whether this answer to `/version` comes from a kvgate."""
    try:
        return _version.decode(version).name == "kvgate"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _read_version(answer: bytes | None) -> str | None:
    try:
        return None if answer is None else _version.decode(answer).version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
