"""PURE. The capacity of an endpoint, from the labels of `vllm:cache_config_info`.

The labels are vLLM's CacheConfig, every value as a string, "None" among them. What they mean (vLLM 0.32):

- `num_gpu_blocks` is the sum over data-parallel ranks; each rank keeps one block, the null block, for itself. A model
  without attention has no other: its cache is no matter of blocks.
- `kv_cache_size_tokens` is per rank: the tokens that fit in sequences of `max_model_len`. If all layers of a model use
  full attention, it agrees with the blocks. For hybrids (sliding window, state layers) blocks times block size is
  wrong, and this figure is right.
- `effective_attention_block_size` is the tokens of a block if they differ from `block_size` (context parallelism).
"""

import math
from collections.abc import Mapping

from gateway.admission.events import Capacity

_MOST = 2**48
"""Blocks or tokens: more than any engine has, and still exact in a float."""
DEFAULT_BLOCK_SIZE = 16
"""Tokens of a block if the engine does not say: vLLM's default."""


def capacity(
    labels: Mapping[str, str],
    max_model_len: int,
    *,
    ranks: int = 1,
    kv_tokens: int | None = None,
    max_num_seqs: int | None = None,
) -> Capacity:
    """The capacity of an endpoint over all its ranks.

    Args:
        labels: of `vllm:cache_config_info`; empty if the engine exports none.
        max_model_len: tokens, from `/v1/models`.
        ranks: data-parallel ranks behind the endpoint.
        kv_tokens: the usable KV cache in tokens, if configured; overrides the engine's figures.
        max_num_seqs: the sequence limit, if configured.
    """
    block_size = (
        _positive(labels, "effective_attention_block_size") or _positive(labels, "block_size") or DEFAULT_BLOCK_SIZE
    )
    blocks = _usable_blocks(labels, block_size, max_model_len, ranks) if kv_tokens is None else kv_tokens // block_size
    # Less than a block is no cache that could be shared out: then nothing is known of what fits.
    if blocks is not None and blocks < 1:
        blocks = None
    return Capacity(
        max_model_len=max_model_len,
        kv_blocks=blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        # Unless it is known to be on, assume that each sequence holds its own prompt: never too little.
        shares_prefix=labels.get("enable_prefix_caching") == "True",
    )


def _usable_blocks(labels: Mapping[str, str], block_size: int, max_model_len: int, ranks: int) -> int | None:
    blocks = _positive(labels, "num_gpu_blocks")
    tokens = _positive(labels, "kv_cache_size_tokens")
    if blocks is None:
        return None if tokens is None else tokens * ranks // block_size - ranks
    usable = blocks - ranks
    if tokens is None or _is_uniform(blocks / ranks, tokens, block_size, max_model_len):
        return usable
    return int(tokens * ranks * (usable / blocks)) // block_size


def _is_uniform(blocks: float, tokens: int, block_size: int, max_model_len: int) -> bool:
    """Whether a rank's tokens equal what its blocks hold if every layer keeps every token.

    The engine counts whole blocks for a sequence of `max_model_len` and rounds down once.
    """
    expected = blocks / math.ceil(max_model_len / block_size) * max_model_len
    return math.isclose(tokens, expected, abs_tol=1.0, rel_tol=1e-6)


def _positive(labels: Mapping[str, str], name: str) -> int | None:
    """A label as a whole number; None if it is absent, "None", zero, not a number, or impossibly large."""
    try:
        value = int(labels.get(name, ""))
    except ValueError:
        return None
    return value if 0 < value <= _MOST else None
