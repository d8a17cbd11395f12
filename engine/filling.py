"""PURE. The arguments kvgate adds for an engine on GPUs where its user set none, each with its reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.arguments import Arguments
from engine.gpu import Gpu
from engine.plan.budget import CONTEXT_BYTES, UTILIZATION

_LEAST_SHARE = 0.05
_PARALLEL = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")


@dataclass(frozen=True, slots=True)
class Filled:
    """Added arguments, and why."""

    args: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{' '.join(self.args)}: {self.why}"


def gpus_needed(given: Arguments) -> int:
    """Return how many GPUs these arguments spread an engine over: tensor x pipeline x data parallel size."""
    return math.prod(max(1, given.integer(flag) or 1) for flag in _PARALLEL)


def share_of(given: Arguments) -> float:
    """Return the share of each card's memory that an engine takes with these arguments."""
    return given.fraction("--gpu-memory-utilization") or UTILIZATION


def filled(given: Arguments, cards: Sequence[Gpu], *, named: bool, engines: int = 1) -> tuple[Filled, ...]:
    """Return what to add to an engine's arguments. Arguments the user gave, or may have given in a file, stay.

    Args:
        given: The user's arguments.
        cards: The GPUs it runs on, as it will find them; empty on a machine without GPUs.
        named: Whether the user named these GPUs for it.
        engines: How many engines share them.
    """
    if not cards or given.has("--config"):
        return ()
    found = []
    if named and len(cards) > 1 and not given.has(*_PARALLEL):
        found.append(
            Filled(("--tensor-parallel-size", str(len(cards))), f"`gpus` gives this engine {len(cards)} of them")
        )
    if given.has("--gpu-memory-utilization"):
        return tuple(found)
    fullest = min(cards, key=lambda card: card.free_bytes / card.total_bytes)
    fits = (fullest.free_bytes - CONTEXT_BYTES) / fullest.total_bytes / engines
    share = math.floor(fits * 100) / 100
    if _LEAST_SHARE <= share < UTILIZATION:
        unused, total = fullest.free_bytes / 2**30, fullest.total_bytes / 2**30
        shared = f", which {engines} engines share" if engines > 1 else ""
        found.append(
            Filled(
                ("--gpu-memory-utilization", f"{share:.2f}"),
                f"GPU {fullest.index} has {unused:.1f} of {total:.1f} GiB free{shared}",
            )
        )
    return tuple(found)
