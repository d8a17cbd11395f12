"""PURE. The size of one layer's block on one rank.

From vLLM 0.32: v1/kv_cache_interface.py (pages, blocks per request), platforms/interface.py (blocks of hybrids) and the
attention backends (packed dtypes).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.plan.shape import Kind, LayerCache, ModelShape, StateTensor

DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
"""Bytes of an element of a floating-point type, by its name in vLLM's flags."""

_SCALE_BYTES = 4
"""Bytes of the float32 scale that the per-token-head types keep for each key and value of each head."""

_SPARSE_LATENT_BYTES = {"fp8": 656, "nvfp4": 352}
"""Bytes of a token in a layer of sparse latent attention, packed with its scales (mla_attention.py)."""


class Device(StrEnum):
    """The devices vLLM is built for."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's share of a block, on one rank.

    Attributes:
        layer: index of the decoder layer.
        kind: how a request's blocks grow.
        tokens: attention tokens in a block.
        bytes: of a block, with padding.
        content: bytes without padding.
        window: tokens of a window or a chunk.
        cells: KV heads and head sizes, by which two layers are alike apart from their bytes.
        checkpoints: further states of a request that prefix caching keeps.
    """

    layer: int
    kind: Kind
    tokens: int
    bytes: int
    content: int
    window: int
    cells: tuple[int, ...]
    checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class Paging:
    """The requested form of the KV cache.

    Attributes:
        tensor_parallel: ranks that share a layer.
        kv_cache_dtype: of keys and values; "auto" is resolved already, see `resolved_dtype`.
        dtype: the type the model runs in.
        state_dtype: `--mamba-ssm-cache-dtype`.
        block_size: tokens in a block of attention; None to let vLLM choose.
        kernel_block: tokens in the attention kernels' smallest block.
        device: the device it runs on.
    """

    tensor_parallel: int
    kv_cache_dtype: str
    dtype: str
    state_dtype: str
    block_size: int | None
    kernel_block: int
    device: Device


def resolved_dtype(shape: ModelShape, dtype: str) -> str:
    """The type a model runs in. vLLM's `--dtype auto` halves float32 (config/model.py, `_resolve_auto_dtype`)."""
    if dtype not in {"auto", ""}:
        return {"half": "float16", "float": "float32"}.get(dtype, dtype)
    return "bfloat16" if shape.dtype == "float32" or shape.dtype not in DTYPE_BYTES else shape.dtype


def resolved_kv_dtype(shape: ModelShape, kv_cache_dtype: str) -> str:
    """The type of keys and values. "auto" is the type the checkpoint's quantization names, if any."""
    if kv_cache_dtype == "auto" and shape.quantization and shape.quantization.kv_cache_dtype:
        return shape.quantization.kv_cache_dtype
    return kv_cache_dtype


def is_known_kv_dtype(kv_cache_dtype: str) -> bool:
    """Whether the size of this type is known."""
    known = kv_cache_dtype == "auto" or kv_cache_dtype in DTYPE_BYTES or kv_cache_dtype.endswith("_per_token_head")
    return known or kv_cache_dtype.startswith(("fp8", "int8", "nvfp4"))


def token_bytes(cache: LayerCache, paging: Paging, *, sparse: bool = False) -> int:
    """Bytes of one token in a layer with attention, on one rank."""
    if cache.token_bytes:
        return cache.token_bytes
    kv_type = paging.kv_cache_dtype
    if cache.kind is Kind.MLA and sparse:
        for name, size in _SPARSE_LATENT_BYTES.items():
            if kv_type.startswith(name):
                return size
    heads = max(1, cache.kv_heads // paging.tensor_parallel)
    elements = cache.head_size + cache.value_size
    if kv_type.startswith("nvfp4") and cache.value_size:
        return heads * sum(size // 2 + size // 16 for size in (cache.head_size, cache.value_size))
    if kv_type.endswith("_per_token_head"):
        packed = elements // 2 if kv_type.startswith("int4") else elements
        return heads * (packed + 2 * _SCALE_BYTES)
    if kv_type.startswith(("fp8", "int8")):
        return heads * elements
    return heads * elements * DTYPE_BYTES[paging.dtype if kv_type == "auto" else kv_type]


def state_bytes(state: Sequence[StateTensor], paging: Paging) -> int:
    """Bytes of one request's state in a recurrent layer, on one rank."""
    total = 0
    for tensor in state:
        name = {"conv": paging.dtype, "": paging.state_dtype}.get(tensor.dtype, tensor.dtype)
        if tensor.dtype not in {"conv", ""} and paging.state_dtype != "auto":
            name = paging.state_dtype
        total += tensor.elements_of_rank(paging.tensor_parallel) * DTYPE_BYTES[paging.dtype if name == "auto" else name]
    return total


def pages(shape: ModelShape, caches: Sequence[LayerCache], paging: Paging) -> list[Page]:
    """Return the page of every layer with a cache, in the order of the layers."""
    sparse = any(cache.token_bytes for cache in caches)
    block = _block_size(shape, caches, paging, sparse=sparse)
    padded = block * _main_token_bytes(shape, caches, paging, sparse=sparse) if shape.hybrid else 0
    found = []
    for cache in caches:
        if cache.kind in {Kind.SHARED, Kind.NONE}:
            continue
        if cache.kind is Kind.STATE:
            content = state_bytes(cache.state, paging)
            found.append(Page(cache.layer, cache.kind, block, max(padded, content), content, 0, (), cache.checkpoints))
            continue
        tokens = block
        if cache.kind is Kind.SLIDING:  # windows choose their own size: the kernel blocks that fit
            tokens = max(paging.kernel_block, block // paging.kernel_block * paging.kernel_block)
        content = tokens * token_bytes(cache, paging, sparse=sparse)
        cells = (cache.kv_heads, cache.head_size, cache.value_size, cache.token_bytes)
        found.append(Page(cache.layer, cache.kind, tokens, content, content, cache.window, cells))
    return found


def _main_token_bytes(shape: ModelShape, caches: Sequence[LayerCache], paging: Paging, *, sparse: bool) -> int:
    """Bytes of a token by the model's main number and size of heads. Hybrids are aligned by it."""
    kind = Kind.MLA if any(cache.kind is Kind.MLA for cache in caches) else Kind.FULL
    value = 0 if kind is Kind.MLA else shape.head_size
    heads = 1 if kind is Kind.MLA else shape.kv_heads
    return token_bytes(LayerCache(0, kind, heads, shape.head_size, value), paging, sparse=sparse)


def _block_size(shape: ModelShape, caches: Sequence[LayerCache], paging: Paging, *, sparse: bool) -> int:
    latent = any(cache.kind is Kind.MLA for cache in caches)
    block = paging.block_size or paging.kernel_block
    if paging.device is Device.CPU and not paging.block_size:
        block = 16 if latent else 128  # platforms/cpu.py
    if not shape.hybrid:
        return block
    # Attention's page must be at least as large as the state (platforms/interface.py, `_align_hybrid_block_size`).
    unit = max(block, paging.kernel_block, 128 if latent else 0)
    state = max(state_bytes(cache.state, paging) for cache in caches if cache.kind is Kind.STATE)
    needed = unit * -(-state // (unit * _main_token_bytes(shape, caches, paging, sparse=sparse)))
    return max(block, paging.kernel_block * -(-needed // paging.kernel_block))
