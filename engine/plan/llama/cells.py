"""PURE. The cells of llama-server's KV cache: each holds one token."""

from engine.plan.llama.model import LlamaModel
from engine.plan.llama.settings import LlamaSettings

CELLS = 256
"""Caches are of whole multiples of so many (`GGML_PAD` in src/llama-context.cpp)."""


def padded(tokens: int) -> int:
    """The cells for so many tokens."""
    return -(-tokens // CELLS) * CELLS


def cache_cells(model: LlamaModel, settings: LlamaSettings, *, window: bool) -> tuple[int, int]:
    """Cells in each stream of a cache, and the number of streams: one for all slots, or one for each.

    A cache of a window has room for the window of each slot that shares it, and for a step
    (src/llama-kv-cache-iswa.cpp).
    """
    if settings.unified:
        cells, streams = padded(settings.context), 1
    else:
        cells, streams = padded(padded(settings.context) // settings.slots), settings.slots
    if window:
        shared = model.window * (settings.slots if settings.unified else 1)
        cells = padded(min(cells, shared + step(settings)))
    return cells, streams


def step(settings: LlamaSettings) -> int:
    """Tokens of the largest step."""
    return min(settings.ubatch, padded(settings.context))
