"""PURE. The advice on how many sequences an engine should run at once (`--max-num-seqs`).

Each takes work space that the KV cache could use: a row of logits in the sampler, and CUDA graphs, which vLLM
captures in steps of 8 (`config/vllm.py`, 0.32).
"""

_STEP = 8
_ROOM = 2
"""Factor over the observed peak, for a busier day."""


def enough(most: int) -> int:
    """The limit for an engine that never ran more than this many at once."""
    return max(_STEP, -(-_ROOM * most // _STEP) * _STEP)


def too_many(limit: int, most: int) -> bool:
    """Whether a limit exceeds the peak so far that lowering it is worth a restart."""
    return limit >= 2 * enough(most)


def more(limit: int) -> int:
    """The limit to try when requests wait for a sequence slot while the KV cache has room."""
    return 2 * limit


def fewer(limit: int) -> int:
    """The limit to try when this one does not fit into memory."""
    return max(1, limit // 2)
