"""This machine's hardware for a plan: equal cards, measured now, or its CPU."""

from collections.abc import Collection, Mapping

from engine.gpu import Gpu
from engine.host_memory import free_bytes, total_bytes
from engine.nvml import gpus, holders
from engine.placement import visible
from engine.plan.cards import Hardware, Process, of_driver

_ALIKE = 0.9
"""Cards are planned together if each has at least this share of the freest one's free memory."""


def hardware_here(
    environ: Mapping[str, str], count: int | None = None, indices: Collection[int] | None = None
) -> Hardware | None:
    """Return the hardware for a model; None if there are too few cards.

    Args:
        environ: kvgate's environment. Cards that its `CUDA_VISIBLE_DEVICES` hides do not count.
        count: the number of cards, the freest ones; None for all that are about as free as the freest.
        indices: NVML indices to choose from.
    """
    cards = _visible(environ, indices)
    if not cards:
        total = total_bytes()
        return Hardware("the CPU", 1, total, min(total, free_bytes()), cpu=True, measured=True)
    if count is not None and count > len(cards):
        return None
    freest = sorted(cards, key=lambda card: -card.free_bytes)
    chosen = freest[:count] if count else [card for card in freest if card.free_bytes >= _ALIKE * freest[0].free_bytes]
    least = min(chosen, key=lambda card: card.total_bytes)
    known, total = of_driver(least.name, least.total_bytes)
    return Hardware(
        known.name if known else least.name,
        len(chosen),
        total,
        min(total, *(card.free_bytes for card in chosen)),
        known.capability if known else None,
        known.nvlink if known else None,
        processes=tuple(Process(held.pid, held.used_bytes) for card in chosen for held in holders(card.index)),
        measured=True,
    )


def cards_here(environ: Mapping[str, str]) -> int:
    """The number of cards kvgate may use on this machine."""
    return len(_visible(environ, None))


def _visible(environ: Mapping[str, str], indices: Collection[int] | None) -> list[Gpu]:
    cards = gpus()
    seen = visible([card.index for card in cards], environ)
    return [card for card in cards if str(card.index) in seen and (indices is None or card.index in indices)]
