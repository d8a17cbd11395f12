"""PURE. A model's shape, read from its config.json: what each layer keeps per token, and how large everything is.

What a layer keeps is decided as vLLM 0.32 decides it (its model files, config/model.py and
transformers_utils/model_arch_config_convertor.py). A family that is not known is planned as an ordinary decoder where
the usual keys are there, and marked `assumed`; a state or an attention that cannot be sized is an error, not a guess.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.plan import families

Config = Mapping[str, Any]
"""A config.json, parsed."""


class UnknownShapeError(Exception):
    """The config does not tell what a plan needs. The message names what is missing."""


class Kind(StrEnum):
    """What a layer keeps of a request."""

    FULL = "full attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked attention"
    MLA = "latent attention"
    STATE = "state"
    SHARED = "shared with another layer"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of the fixed state of a recurrent layer, over all ranks.

    Attributes:
        elements: how many, apart from the groups.
        groups: groups that are repeated until tensor parallelism divides them (Mamba2's B and C).
        per_group: elements of one group.
        dtype: `""` for the state's dtype, `"conv"` for the model's own, or a dtype that is fixed.
    """

    elements: int
    groups: int = 0
    per_group: int = 0
    dtype: str = "conv"

    def elements_of_rank(self, tensor_parallel: int) -> int:
        """Return what one of `tensor_parallel` ranks holds."""
        groups = self.groups if self.groups % tensor_parallel == 0 else tensor_parallel
        return (self.elements + groups * self.per_group) // tensor_parallel


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps. A layer with attention and a state has two of these.

    Attributes:
        layer: index of the decoder layer.
        kind: how it grows with the tokens.
        kv_heads: over all ranks; 1 for latent attention.
        head_size: elements of a key; for latent attention the latent and its rotary part.
        value_size: elements of a value; 0 for latent attention.
        window: tokens of a sliding window or a chunk.
        token_bytes: of a cache whose bytes per token do not depend on its dtype, else 0.
        state: the tensors of a state.
    """

    layer: int
    kind: Kind
    kv_heads: int = 0
    head_size: int = 0
    value_size: int = 0
    window: int = 0
    token_bytes: int = 0
    state: tuple[StateTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights of a checkpoint are quantized, by its own words.

    Attributes:
        method: as `quant_method` names it.
        bits: of a weight; 16 where it does not say.
        group_size: weights that share a scale; 0 for one scale per row or tensor.
        kv_cache_dtype: what `--kv-cache-dtype auto` becomes by it; None where it says nothing.
    """

    method: str
    bits: int
    group_size: int
    kv_cache_dtype: str | None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as a plan sees it. Sizes are elements, lengths are tokens, over all ranks.

    Attributes:
        architecture: the first of `architectures`, or "".
        model_type: of the text model.
        layers: decoder layers.
        hidden_size: of the text model.
        attention_heads: of a layer; 0 where there are none.
        kv_heads: of a layer with attention; 0 where there are none.
        head_size: of a key; for latent attention the latent and its rotary part.
        vocab_size: rows of the embedding.
        tied_embeddings: whether the output head is the embedding.
        dtype: of the weights, as the config says ("bfloat16", "float16", "float32").
        max_positions: the longest `--max-model-len` vLLM accepts.
        default_length: the `max_model_len` vLLM takes where none is given.
        experts: of a layer; 0 where it is not a mixture.
        active_experts: of a token.
        quantization: of the checkpoint, None where it has none.
        caches: what each layer keeps.
        drafts: what each layer of the built-in draft model keeps, when speculative decoding uses it.
        generates: False for an encoder: it embeds or classifies.
        multimodal: whether it has a vision or audio part beside the text model.
        assumed: whether it was taken for an ordinary decoder without knowing its family.
        text: the config of the text model, with its family's defaults.
    """

    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    tied_embeddings: bool
    dtype: str
    max_positions: int
    default_length: int
    experts: int
    active_experts: int
    quantization: Quantization | None
    caches: tuple[LayerCache, ...]
    drafts: tuple[LayerCache, ...]
    generates: bool
    multimodal: bool
    assumed: bool
    text: Config

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a state and others attention."""
        kinds = {cache.kind for cache in self.caches}
        return Kind.STATE in kinds and bool(kinds & {Kind.FULL, Kind.SLIDING, Kind.MLA})

    @classmethod
    def from_config(cls, config: Config) -> "ModelShape":
        """Read a config.json.

        Raises:
            UnknownShapeError: A size is missing, or a layer keeps something whose size is not known.
        """
        text = _text_config(config)
        model_type = str(text.get("model_type") or config.get("model_type") or "")
        if text.get("is_encoder_decoder") or config.get("is_encoder_decoder"):
            raise UnknownShapeError(
                f"{model_type or 'the model'} is an encoder-decoder: its cross-attention cache is not planned"
            )
        generates = model_type not in families.ENCODERS
        layers = _layers(text)
        kinds = _kinds(text, model_type, layers) if generates else _nothing(layers)
        attends = any(kind not in {Kind.STATE, Kind.NONE} for of_layer in kinds for kind in of_layer)
        heads = _heads(text, model_type) if attends else _Heads(0, 0, latent=False)
        caches = _caches(text, model_type, kinds, heads)
        longest, default = _lengths(config, text, model_type)
        return cls(
            architecture=next(iter(config.get("architectures") or ()), ""),
            model_type=model_type,
            layers=layers,
            hidden_size=_integer(text, "hidden_size"),
            attention_heads=_integer(text, "num_attention_heads", default=0),
            kv_heads=heads.kv_heads,
            head_size=heads.size,
            vocab_size=_integer(text, "vocab_size"),
            tied_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            dtype=_dtype(config, text),
            max_positions=longest,
            default_length=default,
            experts=_first_integer(
                text, ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"), default=0
            ),
            active_experts=_first_integer(
                text, ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk"), default=0
            ),
            quantization=_quantization(config, text),
            caches=caches,
            drafts=_drafts(text, layers, heads),
            generates=generates,
            multimodal=any(key in config for key in ("vision_config", "audio_config")),
            assumed=generates and not _known(model_type),
            text=text,
        )


def _known(model_type: str) -> bool:
    return model_type in (
        families.PLAIN | families.MLA | _STATES.keys() | families.FULL_EVERY.keys() | _PATTERNS.keys()
    )


_NESTED = ("text_config", "language_config", "llm_config", "text_model", "thinker_config")
"""Where multimodal configs keep the text model's own, the nearest first."""


def _text_config(config: Config) -> Config:
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return _text_config(nested)
    model_type = str(config.get("model_type") or "")
    return {**families.DEFAULTS.get(model_type, {}), **config}


def _named(config: Config, model_type: str) -> str:
    architectures = ", ".join(config.get("architectures") or ()) or "no architecture named"
    return f"{architectures}, model type {model_type or 'not named'}"


def _first_integer(text: Config, keys: Sequence[str], *, default: int | None = None) -> int:
    for key in keys:
        value = text.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    if default is None:
        raise UnknownShapeError(f"config.json has no `{keys[0]}` ({_named(text, str(text.get('model_type') or ''))})")
    return default


def _integer(text: Config, key: str, *, default: int | None = None) -> int:
    return _first_integer(text, (key, *families.ALIASES.get(key, ())), default=default)


def _layers(text: Config) -> int:
    if text.get("model_type") == "longcat_flash":
        return 2 * _first_integer(text, ("num_layers",))
    return _integer(text, "num_hidden_layers")


def _kv_heads(text: Config, heads: int) -> int:
    if text.get("model_type") in {"falcon", "RefinedWeb", "RefinedWebModel"}:
        if text.get("multi_query") and not text.get("new_decoder_architecture"):
            return 1
    elif text.get("model_type") == "gpt_bigcode" and text.get("multi_query"):
        return 1
    nested = text.get("attn_config")
    if isinstance(nested, Mapping) and "kv_n_heads" in nested:
        return int(nested["kv_n_heads"])
    return _first_integer(text, families.KV_HEADS, default=heads)


@dataclass(frozen=True, slots=True)
class _Heads:
    """What a layer with attention keeps per token: heads and elements of a key; or one latent for all heads."""

    kv_heads: int
    size: int
    latent: bool


def _heads(text: Config, model_type: str) -> _Heads:
    heads = _integer(text, "num_attention_heads")
    rank = text.get("kv_lora_rank")
    latent = model_type in families.MLA and isinstance(rank, int)
    if latent:
        return _Heads(
            heads, _first_integer(text, ("kv_lora_rank",)) + _first_integer(text, ("qk_rope_head_dim",)), True
        )
    return _Heads(_kv_heads(text, heads), _head_size(text, heads), False)


def _head_size(text: Config, heads: int) -> int:
    given = _first_integer(text, ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels"), default=0)
    return given or _integer(text, "hidden_size") // heads


# --- what each layer keeps ------------------------------------------------------------------------------------------

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
"""What the words of `layer_types` and `layers_block_type` mean."""

_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The letters of Nemotron-H's `hybrid_override_pattern`."""


def _kinds(text: Config, model_type: str, layers: int) -> list[tuple[Kind, ...]]:
    types = _PATTERNS.get(model_type, _declared_types)(text, layers)
    if len(types) != layers:
        raise UnknownShapeError(f"config.json describes {len(types)} layers of {layers}")
    unknown = sorted({name for name in types if name not in _TYPES})
    if unknown:
        raise UnknownShapeError(f"layers of type {', '.join(unknown)} ({_named(text, model_type)}) are not known")
    kinds = [_TYPES[name] for name in types]
    shared = _first_integer(text, ("num_kv_shared_layers",), default=0)
    if shared:
        kinds[layers - shared :] = [(Kind.SHARED,)] * shared
    return kinds


def _nothing(layers: int) -> list[tuple[Kind, ...]]:
    return [(Kind.NONE,)] * layers


def _declared_types(text: Config, layers: int) -> list[str]:
    declared = text.get("layer_types")
    if isinstance(declared, list) and declared:
        return [str(name) for name in declared]
    model_type = str(text.get("model_type") or "")
    if every := families.FULL_EVERY.get(model_type):
        every = _first_integer(text, ("sliding_window_pattern", "full_attention_interval"), default=every)
        other = {"llama4_text": "chunked_attention"}.get(
            model_type, "linear_attention" if model_type in _STATES else "sliding_attention"
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


_PATTERNS: Mapping[str, Callable[[Config, int], list[str]]] = {
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
"""Families whose config names its layers in words of its own."""


# --- the states of recurrent layers: vLLM 0.32, model_executor/layers/mamba/mamba_utils.py --------------------------


def _mamba1(width: int, state: int, kernel: int) -> tuple[StateTensor, ...]:
    return StateTensor(width * (kernel - 1)), StateTensor(width * state, dtype="")


def _mamba2(*, width: int, groups: int, heads: int, head: int, state: int, kernel: int) -> tuple[StateTensor, ...]:
    return (
        StateTensor(width * (kernel - 1), groups=groups, per_group=2 * state * (kernel - 1)),
        StateTensor(heads * head * state, dtype=""),
    )


def _of(text: Config, *keys: str) -> int:
    return _first_integer(text, keys)


def _mamba1_state(text: Config) -> tuple[StateTensor, ...]:
    width = _first_integer(text, ("intermediate_size",), default=0) or _of(text, "expand") * _of(text, "hidden_size")
    return _mamba1(width, _of(text, "state_size"), _of(text, "conv_kernel"))


def _jamba_state(text: Config) -> tuple[StateTensor, ...]:
    width = _of(text, "mamba_expand") * _of(text, "hidden_size")
    return _mamba1(width, _of(text, "mamba_d_state"), _of(text, "mamba_d_conv"))


def _mamba2_state(text: Config) -> tuple[StateTensor, ...]:
    return _mamba2(
        width=_of(text, "expand") * _of(text, "hidden_size"),
        groups=_of(text, "n_groups"),
        heads=_of(text, "num_heads"),
        head=_of(text, "head_dim"),
        state=_of(text, "state_size"),
        kernel=_of(text, "conv_kernel"),
    )


def _ssd_state(text: Config) -> tuple[StateTensor, ...]:
    width = _first_integer(text, ("mamba_d_ssm",), default=0)
    if not width:
        width = int(_number(text, "mamba_expand") * _of(text, "hidden_size"))
    heads = _of(text, "mamba_n_heads", "n_mamba_heads")
    head = _first_integer(text, ("mamba_d_head", "mamba_headdim"), default=0) or width // heads
    return _mamba2(
        width=width,
        groups=_of(text, "mamba_n_groups", "mamba_ngroups"),
        heads=heads,
        head=head,
        state=_of(text, "mamba_d_state"),
        kernel=_of(text, "mamba_d_conv"),
    )


def _nemotron_state(text: Config) -> tuple[StateTensor, ...]:
    heads, head = _of(text, "mamba_num_heads"), _of(text, "mamba_head_dim")
    conv, state = _mamba2(
        width=heads * head,
        groups=_of(text, "n_groups"),
        heads=heads,
        head=head,
        state=_of(text, "ssm_state_size"),
        kernel=_of(text, "conv_kernel"),
    )
    return conv, StateTensor(state.elements, dtype=str(text.get("mamba_ssm_cache_dtype") or "float32"))


def _delta_state(text: Config) -> tuple[StateTensor, ...]:
    keys, values = _of(text, "linear_num_key_heads"), _of(text, "linear_num_value_heads")
    key, value = _of(text, "linear_key_head_dim"), _of(text, "linear_value_head_dim")
    width = 2 * keys * key + values * value
    return (
        StateTensor(width * (_of(text, "linear_conv_kernel_dim") - 1)),
        StateTensor(values * value * key, dtype=str(text.get("mamba_ssm_dtype") or "")),
    )


def _conv_state(text: Config) -> tuple[StateTensor, ...]:
    width = _first_integer(text, ("conv_dim",), default=0) or _of(text, "hidden_size")
    return (StateTensor(width * (_of(text, "conv_L_cache") - 1)),)


def _kda_state(text: Config) -> tuple[StateTensor, ...]:
    linear = text.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        raise UnknownShapeError("config.json has no `linear_attn_config`")
    heads, head = int(linear["num_heads"]), int(linear["head_dim"])
    kernel = int(linear.get("short_conv_kernel_size", 4))
    return StateTensor(3 * heads * head * (kernel - 1)), StateTensor(heads * head * head, dtype="float32")


def _number(text: Config, key: str) -> float:
    value = text.get(key)
    if not isinstance(value, int | float):
        raise UnknownShapeError(f"config.json has no `{key}`")
    return float(value)


_STATES: Mapping[str, Callable[[Config], tuple[StateTensor, ...]]] = {
    "mamba": _mamba1_state,
    "falcon_mamba": _mamba1_state,
    "jamba": _jamba_state,
    "mamba2": _mamba2_state,
    "falcon_h1": _ssd_state,
    "granitemoehybrid": _ssd_state,
    "bamba": _ssd_state,
    "zamba2": _ssd_state,
    "nemotron_h": _nemotron_state,
    "qwen3_next": _delta_state,
    "qwen3_5_text": _delta_state,
    "qwen3_5_moe_text": _delta_state,
    "olmo_hybrid": _delta_state,
    "lfm2": _conv_state,
    "lfm2_moe": _conv_state,
    "kimi_linear": _kda_state,
}
"""Families with recurrent layers, and how their state is sized."""


def _caches(text: Config, model_type: str, kinds: list[tuple[Kind, ...]], heads: _Heads) -> tuple[LayerCache, ...]:
    state: tuple[StateTensor, ...] = ()
    if any(Kind.STATE in of_layer for of_layer in kinds):
        if model_type not in _STATES:
            raise UnknownShapeError(f"the size of the state of {_named(text, model_type)} is not known")
        state = _STATES[model_type](text)
    caches = []
    for layer, of_layer in enumerate(kinds):
        for kind in of_layer:
            if kind is Kind.STATE:
                caches.append(LayerCache(layer, kind, state=state))
            elif kind in {Kind.NONE, Kind.SHARED}:
                caches.append(LayerCache(layer, kind))
            else:
                caches += _attention(text, layer, kind, heads)
    return tuple(caches)


def _attention(text: Config, layer: int, kind: Kind, heads: _Heads) -> list[LayerCache]:
    if heads.latent:
        caches = [LayerCache(layer, Kind.MLA, 1, heads.size)]
        if index := text.get("index_head_dim"):
            # One byte per element and a 4-byte scale per 128 (0.32, model_executor/models/deepseek_v2.py).
            caches.append(LayerCache(layer, Kind.MLA, 1, int(index), token_bytes=int(index) + int(index) // 128 * 4))
        return caches
    if kind is Kind.FULL:
        number = _first_integer(text, ("num_global_key_value_heads",), default=heads.kv_heads)
        size = _first_integer(text, ("global_head_dim",), default=heads.size)
        return [LayerCache(layer, kind, number, size, size)]
    key = "attention_chunk_size" if kind is Kind.CHUNKED else "sliding_window"
    return [LayerCache(layer, kind, heads.kv_heads, heads.size, heads.size, window=_first_integer(text, (key,)))]


def _drafts(text: Config, layers: int, heads: _Heads) -> tuple[LayerCache, ...]:
    count = _first_integer(text, ("num_nextn_predict_layers", "mtp_num_hidden_layers"), default=0)
    return tuple(
        cache for layer in range(layers, layers + count) for cache in _attention(text, layer, Kind.FULL, heads)
    )


# --- lengths, dtype, quantization ------------------------------------------------------------------------------------


def _rope(text: Config) -> list[Config]:
    ropes = []
    for key in ("rope_parameters", "rope_scaling"):
        value = text.get(key)
        if not isinstance(value, Mapping):
            continue
        nested = [item for item in value.values() if isinstance(item, Mapping)]
        ropes += nested or [value]
    return ropes


def _lengths(config: Config, text: Config, model_type: str) -> tuple[int, int]:
    """The longest length vLLM accepts, and the one it takes (0.32, config/model.py, `_get_and_verify_max_len`)."""
    found = [int(text[key]) for key in families.LENGTHS if isinstance(text.get(key), int | float)]
    if text.get("model_max_length"):
        found = [int(text["model_max_length"])]
    longest = min(found) if found else 2048
    ropes = _rope(text)
    kinds = [str(rope.get("rope_type") or rope.get("type") or "default") for rope in ropes]
    if "gemma3" not in str(config.get("model_type") or model_type):
        for rope, kind in zip(ropes, kinds, strict=True):
            if kind not in families.UNSCALED_ROPE and isinstance(rope.get("factor"), int | float):
                longest = int(longest * rope["factor"])
                break
    if "longrope" in kinds and isinstance(text.get("original_max_position_embeddings"), int):
        return longest, int(text["original_max_position_embeddings"])
    return longest, longest


def _dtype(config: Config, text: Config) -> str:
    for source in (config, text):
        for key in ("dtype", "torch_dtype"):
            if isinstance(source.get(key), str):
                return str(source[key]).removeprefix("torch.")
    return "float32"


def _quantization(config: Config, text: Config) -> Quantization | None:
    for source in (config, text):
        for key in ("quantization_config", "compression_config"):
            value = source.get(key)
            if isinstance(value, Mapping):
                return _read_quantization(value)
    return None


_METHOD_BITS = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "awq": 4,
    "gptq": 4,
    "mxfp4": 4,
    "modelopt_fp4": 4,
    "bitsandbytes": 4,
    "modelopt": 8,
}
"""Bits of a weight where the config does not say."""


def _read_quantization(value: Config) -> Quantization:
    method = str(value.get("quant_method") or "").lower().replace("_tensors", "-tensors")
    bits = _first_integer(value, ("bits", "w_bit"), default=0)
    group = _first_integer(value, ("group_size", "q_group_size"), default=0)
    groups = value.get("config_groups")
    if isinstance(groups, Mapping):
        for described in groups.values():
            weights = described.get("weights") if isinstance(described, Mapping) else None
            if isinstance(weights, Mapping):
                bits = bits or int(weights.get("num_bits") or 0)
                group = group or int(weights.get("group_size") or 0)
    if value.get("load_in_8bit"):
        bits = 8
    inner = value.get("quantization")
    kv = None
    if method.startswith("modelopt") or isinstance(inner, Mapping):
        named = (inner if isinstance(inner, Mapping) else value).get("kv_cache_quant_algo")
        scheme = value.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:  # noqa: PLR2004 - bits
            named = "fp8"
        kv = {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(named or "").lower())
    return Quantization(method, bits or _METHOD_BITS.get(method, 16), max(0, group), kv)
