"""PURE. The estimate of a model's number of weights from its config alone, for when its files cannot be read."""

from collections.abc import Mapping
from typing import Any

from engine.plan.shape import Kind, LayerCache, ModelShape, UnknownShapeError
from engine.plan.weights import Part, Place, Split, Weights

_UNGATED = frozenset(
    {
        "gpt2",
        "gptj",
        "gpt_neox",
        "gpt_bigcode",
        "opt",
        "bloom",
        "falcon",
        "mpt",
        "phi",
        "starcoder2",
        "nemotron",
        "nemotron_h",
    }
)
"""Families whose feed-forward has two matrices instead of three."""


_LAYER_INPUTS = {"gemma3n_text": 256, "gemma4_text": 256}
"""Default width of the embedding that each layer has of its own."""


def estimated(shape: ModelShape) -> Weights:
    """Count the weights of a model by its config: attention, feed-forward, experts, states and embeddings.

    It leaves out biases, small norms and the vision or audio part: it estimates the text model. For the families in its
    test it is within 0.2 % of the published numbers.

    Raises:
        UnknownShapeError: The config has no width of the feed-forward, or its layers share weights.
    """
    if shape.model_type == "zamba2":
        raise UnknownShapeError("the layers of zamba2 share weights: only its files tell how many")
    parts = _embeddings(shape)
    kept: dict[int, dict[Kind, LayerCache]] = {}
    for cache in shape.caches:
        kept.setdefault(cache.layer, {})[cache.kind] = cache
    for layer, of_layer in kept.items():
        parts += _layer(shape, layer, of_layer)
    return Weights(tuple(part for part in parts if part.elements), sum(part.bytes for part in parts), False)


def _part(shape: ModelShape, place: Place, split: Split, elements: int, *, layer: int = 0, rows: int = 0) -> Part:
    linear = place is Place.LAYER and split is not Split.NONE
    quantized = shape.quantization if linear else None
    bits = 16.0
    if quantized:  # each group has a scale of 16 bits and a zero point of 4
        bits = quantized.bits + (20 / quantized.group_size if quantized.group_size else 0)
    return Part(place, layer, split, elements, int(elements * bits / 8), quantized is None, linear, rows)


def _embeddings(shape: ModelShape) -> list[Part]:
    """Weights outside of the layers."""
    vocabulary = shape.vocab_size * shape.hidden_size
    parts = [_part(shape, Place.EMBEDDING, Split.VOCABULARY, vocabulary, rows=shape.vocab_size)]
    if shape.model_type in {"gpt2", "opt", "gpt_bigcode"}:
        parts.append(_part(shape, Place.EMBEDDING, Split.NONE, shape.max_positions * shape.hidden_size))
    if wide := _layer_input(shape):
        rows = _number(shape.text, "vocab_size_per_layer_input", 262144)
        parts.append(_part(shape, Place.EMBEDDING, Split.VOCABULARY, rows * wide * shape.layers, rows=rows))
        parts.append(_part(shape, Place.EMBEDDING, Split.RANKS, shape.hidden_size * wide * shape.layers))
    if not shape.tied_embeddings and shape.generates:
        parts.append(_part(shape, Place.HEAD, Split.VOCABULARY, vocabulary, rows=shape.vocab_size))
    return parts


def _layer(shape: ModelShape, layer: int, kept: Mapping[Kind, LayerCache]) -> list[Part]:
    split, split_by_heads = 2 * shape.hidden_size * (_layer_input(shape) + _number(shape.text, "laurel_rank")), 0
    for kind, cache in kept.items():
        if kind is Kind.STATE:
            split += _recurrent(shape)
        elif kind is not Kind.NONE or not shape.generates:
            own, keys = _attention(shape, cache)
            split, split_by_heads = split + own, split_by_heads + keys
    dense, router = _feed_forward(shape, layer, set(kept))
    return [
        _part(shape, Place.LAYER, Split.RANKS, split + dense, layer=layer),
        _part(shape, Place.LAYER, Split.HEADS, split_by_heads, layer=layer),
        _part(shape, Place.LAYER, Split.NONE, router + 2 * shape.hidden_size, layer=layer),
    ]


def _layer_input(shape: ModelShape) -> int:
    """Width of the embedding that each layer has of its own; 0 for none."""
    return _number(shape.text, "hidden_size_per_layer_input", _LAYER_INPUTS.get(shape.model_type, 0))


def _number(text: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = text.get(key)
    if isinstance(value, list) and value:
        value = value[0]
    return int(value) if isinstance(value, int | float) else default


def _attention(shape: ModelShape, cache: LayerCache) -> tuple[int, int]:
    """Weights of queries and the output, and those of keys and values."""
    text, hidden, heads = shape.text, shape.hidden_size, shape.attention_heads
    if cache.kind is Kind.MLA:
        nope, value = _number(text, "qk_nope_head_dim"), _number(text, "v_head_dim")
        rank, rotary, low = (
            _number(text, "kv_lora_rank"),
            _number(text, "qk_rope_head_dim"),
            _number(text, "q_lora_rank"),
        )
        width = heads * (nope + rotary)
        queries = hidden * low + low * width if low else hidden * width
        return queries + hidden * (rank + rotary) + rank * heads * (nope + value) + heads * value * hidden, 0
    size = cache.head_size or shape.head_size or hidden // max(1, heads)
    gate = 2 if text.get("attn_output_gate") or shape.model_type.startswith(("qwen3_next", "qwen3_5")) else 1
    kv_heads = cache.kv_heads or shape.kv_heads or heads
    return hidden * heads * size * (gate + 1), 2 * hidden * kv_heads * size


def _recurrent(shape: ModelShape) -> int:
    """Weights of a layer with a state: its input, convolution and output."""
    text, hidden = shape.text, shape.hidden_size
    state = next(cache.state for cache in shape.caches if cache.kind is Kind.STATE)
    if shape.model_type in {"mamba", "falcon_mamba", "jamba"}:
        width = _number(text, "intermediate_size") if shape.model_type != "jamba" else 0
        width = width or _number(text, "expand", _number(text, "mamba_expand", 2)) * hidden
        size = _number(text, "state_size", _number(text, "mamba_d_state", 16))
        rank = _number(text, "time_step_rank", _number(text, "mamba_dt_rank")) or -(-hidden // 16)
        kernel = _number(text, "conv_kernel", _number(text, "mamba_d_conv", 4))
        return 3 * hidden * width + width * (kernel + 2 * size + 2 * rank + size)
    if shape.model_type in {"lfm2", "lfm2_moe"}:
        return 4 * hidden * hidden
    if shape.model_type.startswith(("qwen3_next", "qwen3_5", "olmo_hybrid")):
        keys = _number(text, "linear_num_key_heads") * _number(text, "linear_key_head_dim")
        values = _number(text, "linear_num_value_heads") * _number(text, "linear_value_head_dim")
        return hidden * (2 * keys + 2 * values + 2 * _number(text, "linear_num_value_heads")) + values * hidden
    if shape.model_type == "kimi_linear":
        linear = text["linear_attn_config"]
        return 5 * hidden * int(linear["num_heads"]) * int(linear["head_dim"])
    heads = _number(text, "num_heads", _number(text, "mamba_n_heads", _number(text, "mamba_num_heads", 1)))
    heads = _number(text, "n_mamba_heads", heads)
    kernel = max(2, _number(text, "conv_kernel", _number(text, "mamba_d_conv", 4)))
    convolved = state[0].elements // (kernel - 1)
    grouped = state[0].groups * state[0].per_group // (kernel - 1)
    return hidden * (2 * convolved + grouped + heads) + convolved * hidden


def _feed_forward(shape: ModelShape, layer: int, kinds: set[Kind]) -> tuple[int, int]:
    """Weights of the feed-forward, and of the router, which is on every rank."""
    text, hidden = shape.text, shape.hidden_size
    matrices = 2 if shape.model_type in _UNGATED else 3
    if shape.model_type in {"mamba", "mamba2", "falcon_mamba"}:
        return 0, 0
    if shape.model_type == "nemotron_h" and kinds != {Kind.NONE}:
        return 0, 0
    dense = _number(text, "intermediate_size_mlp") or _number(text, "intermediate_size") or _number(text, "ffn_dim")
    dense = dense or _number(text, "n_inner") or (4 * hidden if matrices == 2 else 0)  # noqa: PLR2004 - of two matrices
    if not shape.experts or not _mixed(shape, layer):
        if not dense:
            raise UnknownShapeError("config.json has no `intermediate_size`, and the files were not read")
        if shape.model_type == "lfm2" and text.get("block_auto_adjust_ff_dim", True):
            dense = int(2 * dense / 3)
            multiple = _number(text, "block_multiple_of", 256)
            dense = multiple * -(-int(dense * float(text.get("block_ffn_dim_multiplier") or 1)) // multiple)
        return matrices * hidden * dense, 0
    width = _expert_width(shape)
    shared = _number(text, "shared_expert_intermediate_size") or _number(text, "shared_intermediate_size")
    shared = shared or _number(text, "n_shared_experts") * width
    if shape.model_type == "llama4_text":
        shared = width
    return matrices * hidden * (width * shape.experts + shared), hidden * shape.experts


def _expert_width(shape: ModelShape) -> int:
    text = shape.text
    return (
        _number(text, "moe_intermediate_size")
        or _number(text, "expert_ffn_hidden_size")
        or _number(text, "intermediate_size")
    )


def idle_elements(shape: ModelShape) -> int:
    """Return the weights of experts that one token does not use; 0 without experts."""
    if not shape.experts:
        return 0
    matrices = 2 if shape.model_type in _UNGATED else 3
    layers = sum(_mixed(shape, layer) for layer in range(shape.layers))
    return matrices * shape.hidden_size * _expert_width(shape) * layers * (shape.experts - shape.active_experts)


def _mixed(shape: ModelShape, layer: int) -> bool:
    """Whether this layer has experts."""
    text = shape.text
    if layer < _number(text, "first_k_dense_replace"):
        return False
    if layer in (text.get("mlp_only_layers") or ()):
        return False
    if shape.model_type == "jamba":
        return layer % _number(text, "expert_layer_period", 2) == _number(text, "expert_layer_offset", 1)
    step = _number(text, "decoder_sparse_step") or _number(text, "interleave_moe_layer_step") or 1
    return (layer + 1) % step == 0
