"""PURE. What an engine on GPUs is told that its user did not say: each argument with its reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.command import flags_of, value_of
from engine.gpu import Gpu
from engine.plan.budget import CONTEXT_BYTES, UTILIZATION

_LEAST_SHARE = 0.05
_PARALLEL = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")


@dataclass(frozen=True, slots=True)
class Filled:
    """Arguments that kvgate adds, and why."""

    args: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{' '.join(self.args)}: {self.why}"


def gpus_needed(args: Sequence[str]) -> int:
    """Return how many GPUs these arguments spread an engine over: tensor x pipeline x data parallel size."""
    sizes = [value_of(args, flag) or "1" for flag in _PARALLEL]
    return math.prod(int(size) if size.isdecimal() else 1 for size in sizes)  # vLLM says what is wrong with others


def share_of(args: Sequence[str]) -> float:
    """Return the share of each card's memory that an engine with these arguments takes."""
    try:
        return float(value_of(args, "--gpu-memory-utilization") or UTILIZATION)
    except ValueError:
        return UTILIZATION  # vLLM says what is wrong with it


def filled(args: Sequence[str], cards: Sequence[Gpu], *, named: bool, engines: int = 1) -> tuple[Filled, ...]:
    """Return what to add to an engine's arguments. What the user gave, or may have given in a file, stays.

    Args:
        args: The user's arguments.
        cards: The GPUs it runs on, as it will find them; empty on a machine without.
        named: Whether the user named these GPUs for it.
        engines: How many engines share them.
    """
    given = flags_of(args)
    if not cards or "--config" in given:
        return ()
    found = []
    if named and len(cards) > 1 and not given & set(_PARALLEL):
        found.append(
            Filled(("--tensor-parallel-size", str(len(cards))), f"`gpus` gives this engine {len(cards)} of them")
        )
    if "--gpu-memory-utilization" in given:
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
