"""PURE. The kinds of engines: what differs in how each is asked, and in what it does when it is full."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class KvOut(StrEnum):
    """What an engine does when its KV cache runs out."""

    PREEMPT = "preempt"
    """A running request loses its blocks and is computed again later."""
    KILL_ALL = "kill_all"
    """All that runs fails, and so does all that has been streamed."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What a gate needs to know of one engine.

    Attributes:
        name: in the state, in logs and in docs.
        owner: `owned_by` of its model cards, by which it is recognised.
        gauges: the route that is read at each probe.
        about: the route that tells the rest of its identity.
        loading: a text in its 503 that means "not ready yet".
        kv_out: what it does when its KV cache runs out.
        counts: whether its own routes count all that it serves, so that no tokenizer is missed.
        overriding: fields in which it reads the output limit or the number of answers before those that an API has for
            them.
        clamps: whether it cuts `max_tokens` to its length; None if that is a matter of its version.
    """

    name: str
    owner: str
    gauges: str
    about: str
    kv_out: KvOut
    loading: str | None = None
    counts: bool = False
    overriding: frozenset[str] = frozenset()
    clamps: bool | None = None


VLLM = EngineKind("vllm", "vllm", "/metrics", "/version", KvOut.PREEMPT)
LLAMA_SERVER = EngineKind(
    "llama-server",
    "llamacpp",
    "/slots",
    "/props",
    KvOut.KILL_ALL,
    loading="Loading model",
    counts=True,
    overriding=frozenset({"n_predict", "n_cmpl", "max_completion_tokens"}),
    clamps=True,
)
"""llama.cpp's server, as builds of November 2026 answer. Without `-np` its slots share one cache, and when it overflows
every request that runs gets "Context size has been exceeded." (measured). So are its fields, on all routes but
`/v1/messages`."""

KINDS = {kind.name: kind for kind in (VLLM, LLAMA_SERVER)}
_BY_OWNER = {kind.owner: kind for kind in KINDS.values()}


def is_loading(message: str) -> bool:
    """Whether an engine's 503 says that it is not ready yet."""
    return any(kind.loading is not None and kind.loading in message for kind in KINDS.values())


class _Card(msgspec.Struct):
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Card] = []


_models = msgspec.json.Decoder(_Models)


def kind_of(models: bytes) -> EngineKind:
    """The kind of an engine, by its answer to `/v1/models`; vLLM's where it does not say."""
    try:
        cards = _models.decode(models).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return VLLM
    return next((_BY_OWNER[card.owned_by] for card in cards if card.owned_by in _BY_OWNER), VLLM)
