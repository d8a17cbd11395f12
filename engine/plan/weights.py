"""PURE. The size of weights: in the files, once loaded, and on each rank of a tensor- and pipeline-parallel group.

Names and splits are those of vLLM 0.32's layers. Column- and row-parallel weights, embeddings and the output head are
divided. Norms, routers and the down-projections of latent attention are on every rank. KV heads are repeated if there
are fewer heads than ranks (model_executor/layers/linear.py, vocab_parallel_embedding.py).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.plan.kv import stage_layers
from engine.plan.pages import DTYPE_BYTES, resolved_dtype
from engine.plan.shape import ModelShape

VOCAB_PADDING = 64
"""vLLM rounds an embedding's rows up to a multiple of this (vocab_parallel_embedding.py)."""

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint, from its file's header. `bytes` is the size of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Place(StrEnum):
    """A weight's place in the model, which decides its pipeline stages."""

    EMBEDDING = "embedding"
    LAYER = "layer"
    HEAD = "head"
    LAST = "after the layers"
    ENCODER = "vision or audio"


class Split(StrEnum):
    """The ways tensor parallelism divides a weight."""

    RANKS = "over all ranks"
    HEADS = "over the KV heads"
    VOCABULARY = "over the rows of the vocabulary"
    NONE = "on every rank"


@dataclass(frozen=True, slots=True)
class Part:
    """Weights with one place and one split.

    Attributes:
        place: which pipeline stages hold them.
        layer: the decoder layer; 0 outside of layers.
        split: how ranks share them.
        elements: number of elements.
        bytes: in the files.
        floating: whether they are converted to the type the model runs in; else they stay as stored.
        linear: whether quantization makes them smaller.
        rows: vocabulary rows of an embedding or a head; else 0.
    """

    place: Place
    layer: int
    split: Split
    elements: int
    bytes: int
    floating: bool
    linear: bool
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization scheme for linear weights.

    Attributes:
        bits: of a weight, with its share of the scales.
        source: of the figure.
    """

    bits: float
    source: str


SCHEMES: Mapping[str, Scheme] = {
    "fp8": Scheme(8.0, "one byte; scales per tensor or channel are negligible (vLLM 0.32, quantization/online/fp8.py)"),
    "int8": Scheme(8.0, "one byte; scales per channel are negligible (W8A8 and W8A16 checkpoints)"),
    "awq": Scheme(4 + 20 / 128, "4 bits, and per group of 128 a 16-bit scale and a 4-bit zero point"),
    "gptq": Scheme(4 + 20 / 128, "4 bits, and per group of 128 a 16-bit scale and a 4-bit zero point"),
    "nvfp4": Scheme(4 + 8 / 16, "4 bits, and per group of 16 an 8-bit scale"),
    "mxfp4": Scheme(4 + 8 / 32, "4 bits, and per group of 32 an 8-bit scale"),
    "bitsandbytes": Scheme(
        4 + 8 / 64 + 32 / 16384, "NF4: 4 bits, an 8-bit scale per 64, and a 32-bit one per 256 of these"
    ),
}
"""Bits of quantized linear weights. Embeddings, head and norms stay unchanged."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model.

    Attributes:
        parts: all parts that vLLM loads (not a tied output head, not draft layers).
        file_bytes: of all tensors in the checkpoint.
        exact: whether they were read from a checkpoint; else they are an estimate from the config.
    """

    parts: tuple[Part, ...]
    file_bytes: int
    exact: bool

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor], shape: ModelShape) -> "Weights":
        """Read all tensors of a checkpoint."""
        total = sum(tensor.bytes for tensor in tensors)
        parts = []
        for tensor in tensors:
            place, layer = _place(tensor.name)
            if _DRAFTS.search(tensor.name) or (place is Place.LAYER and layer >= shape.layers):
                continue
            if place is Place.HEAD and shape.tied_embeddings:
                continue
            parts.append(_part(tensor, place, layer))
        return cls(tuple(parts), total, True)

    @property
    def elements(self) -> int:
        """Number of weights. Packed ones count as stored."""
        return sum(part.elements for part in self.parts)

    def quantized(self, method: str) -> "Weights":
        """The same with linear weights quantized by one of `SCHEMES`: an estimate. Already quantized ones stay."""
        bits = SCHEMES[method].bits
        parts = [
            replace(part, bytes=int(part.elements * bits / 8), floating=False)
            if part.linear and part.floating
            else part
            for part in self.parts
        ]
        return Weights(tuple(parts), sum(part.bytes for part in parts), False)

    def per_rank(
        self, shape: ModelShape, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, dtype: str = "auto"
    ) -> tuple[int, ...]:
        """Return the bytes one rank of each pipeline stage holds once the model is loaded.

        Args:
            shape: of the model.
            tensor_parallel: ranks that share each layer.
            pipeline_parallel: stages the layers are spread over.
            dtype: as `--dtype`.
        """
        stages = stage_layers(shape.layers, pipeline_parallel)
        item = DTYPE_BYTES[resolved_dtype(shape, dtype)]
        held = [0.0] * pipeline_parallel
        for part in self.parts:
            size = _share(part, shape, tensor_parallel, item)
            for stage in _stages(part, stages, shape):
                held[stage] += size
        return tuple(int(size) for size in held)


def _share(part: Part, shape: ModelShape, tensor_parallel: int, item: int) -> float:
    size = float(part.elements * item if part.floating else part.bytes)
    if part.split is Split.VOCABULARY and part.rows:
        padded = -(-part.rows // VOCAB_PADDING) * VOCAB_PADDING
        return size / part.rows * padded / tensor_parallel
    if part.split is Split.HEADS:
        return size / min(tensor_parallel, max(1, shape.kv_heads))
    return size / tensor_parallel if part.split is Split.RANKS else size


def _stages(part: Part, stages: Sequence[range], shape: ModelShape) -> Sequence[int]:
    last = len(stages) - 1
    if part.place is Place.EMBEDDING:
        return (0, last) if shape.tied_embeddings and last else (0,)
    if part.place is Place.ENCODER:
        return (0,)
    if part.place is Place.LAYER:
        return [index for index, layers in enumerate(stages) if part.layer in layers]
    return (last,)


# --- names ----------------------------------------------------------------------------------------------------------

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_ENCODER = re.compile(
    r"(?:^|\.)(?:visual|vision\w*|image\w*|audio\w*|multi_modal_projector|mm_\w+|embed_vision|embed_audio|merger)\."
)
_DRAFTS = re.compile(r"(?:^|\.)(?:mtp|mtp_layers|nextn)\b")
_EMBEDDING = re.compile(r"(?:embed_tokens|wte|word_embeddings|embed_in|embeddings|embedding|tok_embeddings)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer|output)\.(?:weight|qweight|bias)$")
_POSITIONS = re.compile(r"(?:wpe|embed_positions|position_embeddings)\.weight$")
_KV = re.compile(r"(?:^|\.)(?:k_proj|v_proj|key|value)\.")
_REPLICATED = re.compile(
    r"(?:^|\.)(?:gate|router|shared_expert_gate|q_a_proj|kv_a_proj_with_mqa|indexer|norm\w*|\w*norm|ln_\w+|input_scale)\."
)
_COLUMNS = re.compile(
    r"(?:^|\.)(?:q_proj|qkv_proj|c_attn|query_key_value|gate_proj|up_proj|gate_up_proj|c_fc|fc1|in_proj\w*|conv1d|dt_proj)"
    r"\.bias$|(?:^|\.)(?:A_log|D|dt_bias)$"
)
_KEPT = re.compile(r"(?:^|\.)(?:A_log|e_score_correction_bias)$|scale(?:_inv|_\d)?$|_scales$")


def _place(name: str) -> tuple[Place, int]:
    if _ENCODER.search(name):
        return Place.ENCODER, 0
    if found := _LAYER.search(name):
        return Place.LAYER, int(found.group(1))
    if _EMBEDDING.search(name) or _POSITIONS.search(name):
        return Place.EMBEDDING, 0
    if _HEAD.search(name):
        return Place.HEAD, 0
    return Place.LAST, 0


def _part(tensor: Tensor, place: Place, layer: int) -> Part:
    elements = 1
    for size in tensor.shape:
        elements *= size
    floating = tensor.dtype in _FLOATS and not _KEPT.search(tensor.name)
    rows = tensor.shape[0] if place in {Place.EMBEDDING, Place.HEAD} and tensor.shape else 0
    flat = len(tensor.shape) < 2  # noqa: PLR2004 - a matrix has two
    if place in {Place.EMBEDDING, Place.HEAD} and not _POSITIONS.search(tensor.name):
        split = Split.VOCABULARY
    elif _KV.search(tensor.name):
        split = Split.HEADS
    elif _POSITIONS.search(tensor.name) or _REPLICATED.search(tensor.name):
        split = Split.NONE
    else:
        split = Split.NONE if flat and not _COLUMNS.search(tensor.name) else Split.RANKS
    linear = place is Place.LAYER and not flat and split is not Split.NONE and "conv" not in tensor.name
    return Part(place, layer, split, elements, tensor.bytes, floating, linear, rows)
