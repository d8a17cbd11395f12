"""PURE. How many weights a model has, counted from its config alone, for when its files cannot be read."""

from collections.abc import Mapping
from typing import Any

from engine.plan.shape import Kind, ModelShape, UnknownShapeError
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
"""Families whose feed-forward has two matrices and not three."""


def estimated(shape: ModelShape) -> Weights:
    """Count the weights of a model by its config: attention, feed-forward, experts, states and embeddings.

    Norms, biases and the vision or audio part are left out, or guessed at by nothing: it is an estimate of the text
    model. Of the families in its test it is within 1 % of the published numbers.

    Raises:
        UnknownShapeError: The config has no width of the feed-forward.
    """
    item = 2
    text = shape.text
    parts = []

    def add(place: Place, layer: int, split: Split, elements: int, *, rows: int = 0) -> None:
        if elements:
            linear = place is Place.LAYER and split is not Split.NONE
            parts.append(Part(place, layer, split, elements, elements * item, True, linear, rows))

    vocabulary = shape.vocab_size * shape.hidden_size
    add(Place.EMBEDDING, 0, Split.VOCABULARY, vocabulary, rows=shape.vocab_size)
    if shape.model_type in {"gpt2", "opt", "gpt_bigcode"}:
        add(Place.EMBEDDING, 0, Split.NONE, shape.max_positions * shape.hidden_size)
    if shape.model_type == "gemma3n_text":
        _, per_layer = (
            _number(text, "vocab_size_per_layer_input", 262144),
            _number(text, "hidden_size_per_layer_input", 256),
        )
        rows = _number(text, "vocab_size_per_layer_input", 262144)
        add(Place.EMBEDDING, 0, Split.VOCABULARY, rows * per_layer * shape.layers, rows=rows)
    if not shape.tied_embeddings and shape.generates:
        add(Place.HEAD, 0, Split.VOCABULARY, vocabulary, rows=shape.vocab_size)
    kinds: dict[int, set[Kind]] = {}
    for cache in shape.caches:
        kinds.setdefault(cache.layer, set()).add(cache.kind)
    for layer in range(shape.layers):
        of_layer = kinds.get(layer, {Kind.NONE})
        if of_layer & {Kind.FULL, Kind.SLIDING, Kind.CHUNKED, Kind.MLA, Kind.SHARED} or not shape.generates:
            own, keys = _attention(shape)
            add(Place.LAYER, layer, Split.RANKS, own)
            add(Place.LAYER, layer, Split.HEADS, keys)
        if Kind.STATE in of_layer:
            add(Place.LAYER, layer, Split.RANKS, _recurrent(shape))
        dense, router = _feed_forward(shape, layer, of_layer)
        add(Place.LAYER, layer, Split.RANKS, dense)
        add(Place.LAYER, layer, Split.NONE, router + 2 * shape.hidden_size)
    return Weights(tuple(parts), sum(part.bytes for part in parts), False)


def _number(text: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = text.get(key)
    if isinstance(value, list) and value:
        value = value[0]
    return int(value) if isinstance(value, int | float) else default


def _attention(shape: ModelShape) -> tuple[int, int]:
    """Weights of queries and the output, and those of keys and values."""
    text, hidden, heads = shape.text, shape.hidden_size, shape.attention_heads
    if any(cache.kind is Kind.MLA for cache in shape.caches):
        nope, value = _number(text, "qk_nope_head_dim"), _number(text, "v_head_dim")
        rank, rotary, low = (
            _number(text, "kv_lora_rank"),
            _number(text, "qk_rope_head_dim"),
            _number(text, "q_lora_rank"),
        )
        width = heads * (nope + rotary)
        queries = hidden * low + low * width if low else hidden * width
        return queries + hidden * (rank + rotary) + rank * heads * (nope + value) + heads * value * hidden, 0
    size = shape.head_size or hidden // max(1, heads)
    gate = 2 if text.get("attn_output_gate") or shape.model_type.startswith(("qwen3_next", "qwen3_5")) else 1
    kv_heads = shape.kv_heads or heads
    return hidden * heads * size * (gate + 1), 2 * hidden * kv_heads * size


def _recurrent(shape: ModelShape) -> int:
    """Weights of a layer with a state: into it, its convolution, and out of it."""
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
    """Weights of the feed-forward, and of the router that is on every rank."""
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
    width = (
        _number(text, "moe_intermediate_size")
        or _number(text, "expert_ffn_hidden_size")
        or _number(text, "intermediate_size")
    )
    shared = _number(text, "shared_expert_intermediate_size") or _number(text, "shared_intermediate_size")
    shared = shared or _number(text, "n_shared_experts") * width
    if shape.model_type == "llama4_text":
        shared = width
    return matrices * hidden * (width * shape.experts + shared), hidden * shape.experts


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
