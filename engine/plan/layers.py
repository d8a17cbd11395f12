"""PURE. The cache of each layer of a model: keys and values, a window, a latent, a state, or nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.plan import families
from engine.plan.keys import Config, UnknownShapeError, first_integer, integer, named
from engine.plan.states import CHECKPOINTED, STATES, StateTensor


class Kind(StrEnum):
    """The kinds of a layer's cache."""

    FULL = "full attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked attention"
    MLA = "latent attention"
    STATE = "state"
    SHARED = "shared with another layer"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer. A layer with attention and a state has two.

    Attributes:
        layer: index of the decoder layer.
        kind: how it grows with the tokens.
        kv_heads: over all ranks; 1 for latent attention.
        head_size: elements of a key; for latent attention, of the latent and its rotary part.
        value_size: elements of a value; 0 for latent attention.
        window: tokens of a sliding window or a chunk.
        token_bytes: bytes per token if they do not depend on the cache's dtype, else 0.
        state: the tensors of a state.
        checkpoints: further states of a request that prefix caching keeps, at block boundaries.
    """

    layer: int
    kind: Kind
    kv_heads: int = 0
    head_size: int = 0
    value_size: int = 0
    window: int = 0
    token_bytes: int = 0
    state: tuple[StateTensor, ...] = ()
    checkpoints: int = 0


def layer_count(text: Config) -> int:
    """Return the number of layers that may have a cache."""
    if text.get("model_type") == "longcat_flash":
        return 2 * first_integer(text, ("num_layers",))
    return integer(text, "num_hidden_layers")


def _kv_heads(text: Config, heads: int) -> int:
    if text.get("model_type") in {"falcon", "RefinedWeb", "RefinedWebModel"}:
        if text.get("multi_query") and not text.get("new_decoder_architecture"):
            return 1
    elif text.get("model_type") == "gpt_bigcode" and text.get("multi_query"):
        return 1
    nested = text.get("attn_config")
    if isinstance(nested, Mapping) and "kv_n_heads" in nested:
        return int(nested["kv_n_heads"])
    return first_integer(text, families.KV_HEADS, default=heads)


@dataclass(frozen=True, slots=True)
class Heads:
    """The cache of an attention layer per token: heads and elements of a key, or one latent for all heads."""

    kv_heads: int
    size: int
    latent: bool


def heads_of(text: Config, model_type: str) -> Heads:
    """Return the cache of an attention layer per token.

    Raises:
        UnknownShapeError: The config has no number of heads, or no size.
    """
    heads = integer(text, "num_attention_heads")
    rank = text.get("kv_lora_rank")
    latent = model_type in families.MLA and isinstance(rank, int)
    if latent:
        return Heads(heads, first_integer(text, ("kv_lora_rank",)) + first_integer(text, ("qk_rope_head_dim",)), True)
    return Heads(_kv_heads(text, heads), _head_size(text, heads), False)


def _head_size(text: Config, heads: int) -> int:
    given = first_integer(text, ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels"), default=0)
    return given or integer(text, "hidden_size") // heads


_TYPES: Mapping[str, tuple[Kind, ...]] = {
    "full_attention": (Kind.FULL,),
    "attention": (Kind.FULL,),
    "sliding_attention": (Kind.SLIDING,),
    "chunked_attention": (Kind.CHUNKED,),
    "linear_attention": (Kind.STATE,),
    "mamba": (Kind.STATE,),
    "conv": (Kind.STATE,),
    "hybrid": (Kind.FULL, Kind.STATE),
    "moe": (Kind.NONE,),
    "mlp": (Kind.NONE,),
}
"""Meanings of the words in `layer_types` and `layers_block_type`."""

_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The letters of Nemotron-H's `hybrid_override_pattern`."""


def kinds_of(text: Config, model_type: str, layers: int) -> list[tuple[Kind, ...]]:
    """Return the kinds of each layer's cache. A layer with attention and a state has both.

    Raises:
        UnknownShapeError: The config names an unknown type of layer, or not one type for each layer.
    """
    types = PATTERNS.get(model_type, _declared_types)(text, layers)
    if len(types) != layers:
        raise UnknownShapeError(f"config.json describes {len(types)} layers of {layers}")
    unknown = sorted({name for name in types if name not in _TYPES})
    if unknown:
        raise UnknownShapeError(f"layers of type {', '.join(unknown)} ({named(text, model_type)}) are not known")
    kinds = [_TYPES[name] for name in types]
    shared = first_integer(text, ("num_kv_shared_layers",), default=0)
    if shared:
        kinds[layers - shared :] = [(Kind.SHARED,)] * shared
    return kinds


def nothing(layers: int) -> list[tuple[Kind, ...]]:
    """Return the kinds of an encoder, whose layers cache nothing."""
    return [(Kind.NONE,)] * layers


def _declared_types(text: Config, layers: int) -> list[str]:
    declared = text.get("layer_types")
    if isinstance(declared, list) and declared:
        return [str(name) for name in declared]
    model_type = str(text.get("model_type") or "")
    if every := families.FULL_EVERY.get(model_type):
        every = first_integer(text, ("sliding_window_pattern", "full_attention_interval"), default=every)
        other = {"llama4_text": "chunked_attention"}.get(
            model_type, "linear_attention" if model_type in STATES else "sliding_attention"
        )
        return ["full_attention" if (index + 1) % every == 0 else other for index in range(layers)]
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full_attention"] * layers
    if "max_window_layers" in text and text.get("use_sliding_window"):
        first = int(text["max_window_layers"])
        return ["sliding_attention" if index >= first else "full_attention" for index in range(layers)]
    return ["sliding_attention"] * layers


def _jamba(text: Config, layers: int) -> list[str]:
    period, offset = int(text["attn_layer_period"]), int(text["attn_layer_offset"])
    return ["attention" if index % period == offset else "mamba" for index in range(layers)]


def _bamba(text: Config, layers: int) -> list[str]:
    attention = text.get("attn_layer_indices") or ()
    return ["attention" if index in attention else "mamba" for index in range(layers)]


def _lfm2(text: Config, layers: int) -> list[str]:
    if text.get("layer_types"):
        return _declared_types(text, layers)
    full = text.get("full_attn_idxs")
    return ["full_attention" if full is None or index in full else "conv" for index in range(layers)]


def _nemotron(text: Config, layers: int) -> list[str]:
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_NEMOTRON.get(letter, letter) for letter in pattern]
    return list(text.get("layers_block_type") or ()) or _declared_types(text, layers)


def _zamba2(text: Config, layers: int) -> list[str]:
    if types := text.get("layers_block_type"):
        return list(types)
    hybrid = text.get("hybrid_layer_ids") or ()
    return ["hybrid" if index in hybrid else "mamba" for index in range(layers)]


def _kimi_linear(text: Config, layers: int) -> list[str]:
    full = (text.get("linear_attn_config") or {}).get("full_attn_layers") or ()  # they count from 1
    return ["full_attention" if index + 1 in full else "linear_attention" for index in range(layers)]


PATTERNS: Mapping[str, Callable[[Config, int], list[str]]] = {
    "jamba": _jamba,
    "bamba": _bamba,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "nemotron_h": _nemotron,
    "zamba2": _zamba2,
    "kimi_linear": _kimi_linear,
    "mamba": lambda _, layers: ["mamba"] * layers,
    "mamba2": lambda _, layers: ["mamba"] * layers,
    "falcon_mamba": lambda _, layers: ["mamba"] * layers,
    "falcon_h1": lambda _, layers: ["hybrid"] * layers,
}
"""Families whose configs name layers in words of their own."""


def layer_caches(text: Config, model_type: str, kinds: list[tuple[Kind, ...]], heads: Heads) -> tuple[LayerCache, ...]:
    """Return the cache of each layer.

    Raises:
        UnknownShapeError: The size of this family's state is unknown, or a size is missing.
    """
    state: tuple[StateTensor, ...] = ()
    if any(Kind.STATE in of_layer for of_layer in kinds):
        if model_type not in STATES:
            raise UnknownShapeError(f"the size of the state of {named(text, model_type)} is not known")
        state = STATES[model_type](text)
    caches = []
    for layer, of_layer in enumerate(kinds):
        for kind in of_layer:
            if kind is Kind.STATE:
                caches.append(LayerCache(layer, kind, state=state, checkpoints=int(model_type in CHECKPOINTED)))
            elif kind in {Kind.NONE, Kind.SHARED}:
                caches.append(LayerCache(layer, kind))
            else:
                caches += _attention(text, layer, kind, heads)
    return tuple(caches)


def _attention(text: Config, layer: int, kind: Kind, heads: Heads) -> list[LayerCache]:
    if heads.latent:
        caches = [LayerCache(layer, Kind.MLA, 1, heads.size)]
        if index := text.get("index_head_dim"):
            # One byte per element and a 4-byte scale per 128 (0.32, model_executor/models/deepseek_v2.py).
            caches.append(LayerCache(layer, Kind.MLA, 1, int(index), token_bytes=int(index) + int(index) // 128 * 4))
        return caches
    if kind is Kind.FULL:
        number = first_integer(text, ("num_global_key_value_heads",), default=heads.kv_heads)
        size = first_integer(text, ("global_head_dim",), default=heads.size)
        return [LayerCache(layer, kind, number, size, size)]
    key = "attention_chunk_size" if kind is Kind.CHUNKED else "sliding_window"
    return [LayerCache(layer, kind, heads.kv_heads, heads.size, heads.size, window=first_integer(text, (key,)))]
