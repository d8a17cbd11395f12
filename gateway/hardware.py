"""This machine as a plan sees it: equal cards, as they are measured now, or its CPU."""

from collections.abc import Collection, Mapping

from engine.gpu import Gpu, gpus, holders
from engine.host_memory import free_bytes
from engine.plan.cards import Hardware, Process, of_driver
from engine.program import memory_bytes

_ALIKE = 0.9
"""Cards whose free memory is at least this share of the freest one's are planned for together."""


def hardware_here(
    environ: Mapping[str, str], count: int | None = None, indices: Collection[int] | None = None
) -> Hardware | None:
    """Return what a model would run on here; None where there are fewer cards than that.

    Args:
        environ: of kvgate: cards that `CUDA_VISIBLE_DEVICES` hides do not count.
        count: how many cards, the freest ones; where None, all that are about as free as the freest.
        indices: only these of NVML's indices.
    """
    cards = _visible(environ, indices)
    if not cards:
        total = memory_bytes()
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
    """How many cards kvgate may use here."""
    return len(_visible(environ, None))


def _visible(environ: Mapping[str, str], indices: Collection[int] | None) -> list[Gpu]:
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    named = None if shown is None else {part.strip() for part in shown.split(",")}
    return [
        card
        for card in gpus()
        if (named is None or str(card.index) in named) and (indices is None or card.index in indices)
    ]
