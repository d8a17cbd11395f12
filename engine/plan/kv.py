"""PURE. A model's KV cache in vLLM's own blocks: bytes of a block, blocks of a request, tokens that fit.

The formulas are vLLM 0.32's (v1/core/kv_cache_utils.py). The number of blocks is the available memory divided by the
bytes of a block, the smallest over all ranks. A request holds whole blocks of every group of layers. The logged "KV
cache size" is the concurrency at `max_model_len` times that length. One block, the null block, holds no request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.plan.groups import Group, UnpackableError, grouped
from engine.plan.pages import Device, Paging, pages, resolved_dtype, resolved_kv_dtype
from engine.plan.shape import Kind, LayerCache, ModelShape

_KERNEL_BLOCKS = {Device.CUDA: (16,), Device.CPU: (32,)}
"""Tokens of the attention kernels' smallest block: FlashAttention, Triton and the CPU's."""

_OTHER_KERNEL_BLOCKS = {Device.CUDA: (32, 64, 128), Device.CPU: ()}
"""The same for other backends that vLLM may choose. They matter if a block must also hold a state."""

_LATENT_BLOCK = 64
"""The same for FlashMLA, which serves latent attention on most GPUs."""


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Tokens of KV cache as vLLM logs them. `low` equals `high` if there is only one layout."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One layout of the cache.

    Attributes:
        block_size: tokens in a block of attention.
        bytes_per_block: on the rank with the largest blocks.
        groups: the groups that draw from the pool of blocks.
    """

    block_size: int
    bytes_per_block: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The KV cache of a model, on each of the ranks that serve it.

    Attributes:
        arrangements: the layouts vLLM may use, the usual one first; empty for a model that caches nothing.
        in_flight: tokens that may be scheduled but not yet settled; windows keep blocks for them.
        states_cached: whether prefix caching keeps states. A request then takes two blocks of a group of recurrent
            layers, and one more if a prefill leaves a checkpoint.
    """

    arrangements: tuple[Arrangement, ...]
    in_flight: int
    states_cached: bool

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        *,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        kv_cache_dtype: str = "auto",
        dtype: str = "auto",
        state_dtype: str = "auto",
        block_size: int | None = None,
        max_num_batched_tokens: int = 8192,
        prefix_caching: bool = True,
        device: Device = Device.CUDA,
    ) -> "KvLayout":
        """Lay out a model's cache.

        Args:
            shape: the model.
            tensor_parallel: ranks that share each layer. KV heads are repeated if there are fewer heads than ranks.
            pipeline_parallel: stages that the layers are spread over.
            kv_cache_dtype: as `--kv-cache-dtype`.
            dtype: as `--dtype`.
            state_dtype: as `--mamba-ssm-cache-dtype`.
            block_size: as `--block-size`, in tokens; None for vLLM's choice.
            max_num_batched_tokens: as the flag.
            prefix_caching: whether it is on. Recurrent layers then keep a second state per request.
            device: the device vLLM runs on.

        Raises:
            UnpackableError: The layers' blocks have no common size, so vLLM would refuse to start.
        """
        caches = shape.caches
        latent = any(cache.kind is Kind.MLA for cache in caches)
        kernel, *others = _KERNEL_BLOCKS[device] + _OTHER_KERNEL_BLOCKS[device]
        if latent:
            kernel = _LATENT_BLOCK if device is Device.CUDA else 16
        paging = Paging(
            tensor_parallel,
            resolved_kv_dtype(shape, kv_cache_dtype),
            resolved_dtype(shape, dtype),
            state_dtype,
            block_size,
            kernel,
            device,
        )
        stages = stage_layers(shape.layers, pipeline_parallel)
        candidates = [(paging, False)]
        if device is Device.CUDA:
            candidates.append((paging, True))
        if shape.hybrid and not block_size:
            candidates += [(replace(paging, kernel_block=other), False) for other in others if other > kernel]
        arrangements: dict[Arrangement, None] = {}
        for candidate, packed in candidates:
            arranged = _arranged(shape, caches, candidate, stages, packed=packed)
            if arranged:
                arrangements[arranged] = None
        attends = any(cache.kind is not Kind.STATE for cache in caches)
        batches = pipeline_parallel if device is Device.CPU else pipeline_parallel + 1
        # A model of states alone caches no prefixes (config/model.py, `is_prefix_caching_supported`).
        return cls(tuple(arrangements), batches * max_num_batched_tokens, prefix_caching and attends)

    @property
    def block_size(self) -> int:
        """Tokens in a block of attention, in the usual arrangement."""
        return self.arrangements[0].block_size if self.arrangements else 0

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block on the rank with the largest blocks, in the usual arrangement."""
        return self.arrangements[0].bytes_per_block if self.arrangements else 0

    @property
    def bytes_per_token(self) -> float:
        """Bytes of each further token of a long request on a rank; 0 if all layers keep windows or states."""
        if not self.arrangements:
            return 0.0
        usual = self.arrangements[0]
        growing = [group for group in usual.groups if group.kind in {Kind.FULL, Kind.MLA}]
        return sum(usual.bytes_per_block / group.tokens for group in growing)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that vLLM reserves for a request of this many tokens, in the usual arrangement."""
        return self._blocks(self.arrangements[0], tokens) if self.arrangements else 0

    def bytes_for(self, tokens: int) -> int:
        """Bytes of a request of this many tokens on a rank, in the largest arrangement."""
        return max((self._blocks(way, tokens) * way.bytes_per_block for way in self.arrangements), default=0)

    def tokens(self, kv_bytes: int, max_model_len: int) -> TokenRange:
        """Tokens of cache that vLLM logs for this many bytes on each rank, at this `max_model_len`."""
        found = [
            int(kv_bytes // way.bytes_per_block / self._blocks(way, max_model_len) * max_model_len)
            for way in self.arrangements
        ]
        return TokenRange(min(found, default=0), max(found, default=0))

    def requests(self, kv_bytes: int, tokens: int) -> float:
        """Fewest requests of this many tokens that fit at once into this many bytes, without the null block."""
        return min(
            (max(0, kv_bytes // way.bytes_per_block - 1) / self._blocks(way, tokens) for way in self.arrangements),
            default=float("inf"),
        )

    def longest(self, kv_bytes: int, at_most: int) -> int:
        """The longest `max_model_len` up to `at_most` at which one request fits; 0 for none."""
        return min((self._longest(way, kv_bytes, at_most) for way in self.arrangements), default=at_most)

    def _longest(self, way: Arrangement, kv_bytes: int, at_most: int) -> int:
        available = kv_bytes // way.bytes_per_block - 1  # without the null block
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self._blocks(way, middle) <= available:
                low = middle
            else:
                high = middle - 1
        return low

    def _blocks(self, way: Arrangement, tokens: int) -> int:
        return sum(self._blocks_of(group, tokens) for group in way.groups)

    def _blocks_of(self, group: Group, tokens: int) -> int:
        if group.kind is Kind.STATE:
            return 2 + group.checkpoints if self.states_cached else 1
        if group.kind is Kind.SLIDING:  # one more: a window may begin inside a block
            return -(-min(group.window - 1 + self.in_flight, tokens) // group.tokens) + 1
        if group.kind is Kind.CHUNKED:
            return -(-min(group.window + self.in_flight, tokens) // group.tokens)
        return -(-tokens // group.tokens)


def stage_layers(layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage. Remaining layers go to the stages before the last (distributed/utils.py)."""
    sizes = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        sizes[-index] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _arranged(
    shape: ModelShape, caches: Sequence[LayerCache], paging: Paging, stages: Sequence[range], *, packed: bool
) -> Arrangement | None:
    found = pages(shape, caches, paging)
    if not found:
        return None
    groups = grouped(found, packed=packed)
    per_block = max(group.bytes_of(stage) for stage in stages for group in groups)
    attention = [page.tokens for page in found if page.kind is not Kind.STATE]
    return Arrangement(max(attention, default=0), per_block, groups)


__all__ = ["Arrangement", "Device", "KvLayout", "TokenRange", "UnpackableError", "stage_layers"]
