"""This machine's hardware for a plan: equal cards, measured now, or its CPU."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from engine.gpu import Gpu
from engine.gpu_placement import visible
from engine.host_cores import are_wide
from engine.host_memory import free_bytes, total_bytes
from engine.nvml import gpus, holders
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
    cards = cards_here(environ, indices)
    if not cards:
        return host_here()
    if count is not None and count > len(cards):
        return None
    return hardware_of(freest(cards, count))


def host_here() -> Hardware:
    """This machine's CPU."""
    total = total_bytes()
    return Hardware("the CPU", 1, total, min(total, free_bytes()), cpu=True, wide=are_wide(), measured=True)


def freest(cards: Sequence[Gpu], count: int | None = None) -> list[Gpu]:
    """The freest cards: so many of them, or all that are about as free as the freest."""
    ordered = sorted(cards, key=lambda card: -card.free_bytes)
    return ordered[:count] if count else [card for card in ordered if card.free_bytes >= _ALIKE * ordered[0].free_bytes]


def hardware_of(cards: Sequence[Gpu], ours: Collection[int] = ()) -> Hardware:
    """Cards as the hardware of one engine, which has as much on each as there is on the least of them.

    Args:
        cards: one at least.
        ours: processes whose memory counts as free.
    """
    least = min(cards, key=lambda card: card.total_bytes)
    known, total = of_driver(least.name, least.total_bytes)
    return Hardware(
        known.name if known else least.name,
        len(cards),
        total,
        min(total, *(card.free_bytes for card in cards)),
        known.capability if known else None,
        known.nvlink if known else None,
        processes=tuple(
            Process(held.pid, held.used_bytes) for card in cards for held in holders(card.index) if held.pid not in ours
        ),
        measured=True,
    )


def cards_here(
    environ: Mapping[str, str], indices: Collection[int] | None = None, ours: Collection[int] = ()
) -> list[Gpu]:
    """The cards that kvgate may use on this machine, of these NVML indices. The memory of `ours` counts as free."""
    cards = gpus()
    seen = visible([card.index for card in cards], environ)
    return [
        replace(card, free_bytes=min(card.total_bytes, card.free_bytes + _held(card, ours)))
        for card in cards
        if str(card.index) in seen and (indices is None or card.index in indices)
    ]


def _held(card: Gpu, ours: Collection[int]) -> int:
    return sum(held.used_bytes or 0 for held in holders(card.index) if held.pid in ours) if ours else 0


def tells(cards: Sequence[Gpu], ours: Collection[int]) -> bool:
    """Whether the driver says what `ours` hold on one of these cards. In a container it may not, or by other ids."""
    return any(held.used_bytes is not None for card in cards for held in holders(card.index) if held.pid in ours)
