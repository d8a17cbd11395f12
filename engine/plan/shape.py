"""PURE. A model's shape, read from its config.json: the cache of each layer, and all sizes.

A layer's cache follows vLLM 0.32 (its model files, config/model.py and
transformers_utils/model_arch_config_convertor.py). An unknown family with the usual keys is planned as an ordinary
decoder and marked `assumed`. A state or an attention of unknown size is an error, not a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.plan import families
from engine.plan.keys import Config, UnknownShapeError, first_integer, integer
from engine.plan.layers import (
    PATTERNS,
    Heads,
    Kind,
    LayerCache,
    heads_of,
    kinds_of,
    layer_caches,
    layer_count,
    nothing,
)
from engine.plan.states import STATES, StateTensor

__all__ = ["Kind", "LayerCache", "ModelShape", "Quantization", "StateTensor", "UnknownShapeError"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of a checkpoint's weights, as its config gives it.

    Attributes:
        method: as `quant_method` names it.
        bits: of a weight; 16 by default.
        group_size: weights that share a scale; 0 for one scale per row or tensor.
        kv_cache_dtype: the meaning of `--kv-cache-dtype auto`; None if it names none.
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
        attention_heads: of a layer; 0 if there are none.
        kv_heads: of a layer with attention; 0 if there are none.
        head_size: of a key; for latent attention, of the latent and its rotary part.
        vocab_size: rows of the embedding.
        tied_embeddings: whether the output head is the embedding.
        dtype: of the weights, as the config says ("bfloat16", "float16", "float32").
        max_positions: the longest `--max-model-len` vLLM accepts.
        default_length: vLLM's default `max_model_len`.
        experts: of a layer; 0 if it is no mixture of experts.
        active_experts: of a token.
        quantization: of the checkpoint; None if it has none.
        caches: of the layers.
        generates: False for an encoder: it embeds or classifies.
        multimodal: whether it has a vision or audio part beside the text model.
        assumed: whether its family is unknown and it was taken for an ordinary decoder.
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
            UnknownShapeError: A size is missing, or a layer has a cache of unknown size.
        """
        try:
            return cls._read(config)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise UnknownShapeError(f"its config.json has a value of an unexpected kind: {error}") from error

    @classmethod
    def _read(cls, config: Config) -> "ModelShape":
        text = _text_config(config)
        model_type = str(text.get("model_type") or config.get("model_type") or "")
        if text.get("is_encoder_decoder") or config.get("is_encoder_decoder"):
            raise UnknownShapeError(
                f"{model_type or 'the model'} is an encoder-decoder: its cross-attention cache is not planned"
            )
        generates = model_type not in families.ENCODERS
        layers = layer_count(text)
        kinds = kinds_of(text, model_type, layers) if generates else nothing(layers)
        attends = any(kind not in {Kind.STATE, Kind.NONE} for of_layer in kinds for kind in of_layer)
        heads = heads_of(text, model_type) if attends else Heads(0, 0, latent=False)
        if attends and not heads.latent and not heads.size * heads.kv_heads:
            raise UnknownShapeError(f"{model_type or 'the model'} has attention, and heads without a size")
        caches = layer_caches(text, model_type, kinds, heads)
        longest, default = _lengths(config, text, model_type)
        return cls(
            architecture=next(iter(config.get("architectures") or ()), ""),
            model_type=model_type,
            layers=layers,
            hidden_size=integer(text, "hidden_size"),
            attention_heads=integer(text, "num_attention_heads", default=0),
            kv_heads=heads.kv_heads,
            head_size=heads.size,
            vocab_size=integer(text, "vocab_size"),
            tied_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            dtype=_dtype(config, text),
            max_positions=longest,
            default_length=default,
            experts=first_integer(
                text, ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"), default=0
            ),
            active_experts=first_integer(
                text, ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk"), default=0
            ),
            quantization=_quantization(config, text),
            caches=caches,
            generates=generates,
            multimodal=any(key in config for key in ("vision_config", "audio_config")),
            assumed=generates and not _known(model_type),
            text=text,
        )


def _known(model_type: str) -> bool:
    return model_type in (families.PLAIN | families.MLA | STATES.keys() | families.FULL_EVERY.keys() | PATTERNS.keys())


_NESTED = ("text_config", "language_config", "llm_config", "text_model", "thinker_config")
"""Keys under which multimodal configs hold the text model's config, tried in this order."""


def _text_config(config: Config) -> Config:
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return _text_config(nested)
    model_type = str(config.get("model_type") or "")
    return {**families.DEFAULTS.get(model_type, {}), **config}


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
    found = [int(text[key]) for key in families.LENGTHS if isinstance(text.get(key), int | float) and text[key] > 0]
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
"""Default bits of a weight."""


def _read_quantization(value: Config) -> Quantization:
    method = str(value.get("quant_method") or "").lower().replace("_tensors", "-tensors")
    bits = first_integer(value, ("bits", "w_bit"), default=0)
    group = first_integer(value, ("group_size", "q_group_size"), default=0)
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
