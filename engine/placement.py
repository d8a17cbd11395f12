"""PURE. Which GPUs each engine gets."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class PlacementError(ValueError):
    """The engines cannot be placed, for the reason the text gives."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one engine that is launched needs.

    Attributes:
        gpus: The NVML indices configured; where None, it gets as many as it needs that no other has.
        size: GPUs it runs on: its tensor times its pipeline times its data parallel size.
        shares: Whether it may be on a card that another one is on too.
    """

    gpus: tuple[int, ...] | None = None
    size: int = 1
    shares: bool = False


def place(wishes: Sequence[Wish], present: Sequence[int], environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return, for each engine, what `CUDA_VISIBLE_DEVICES` shall hold for it; nothing to leave it as it is.

    A single engine for which no GPUs are configured sees all there are.

    Args:
        wishes: One for each engine.
        present: NVML indices of this machine's GPUs.
        environ: kvgate's own environment: GPUs hidden from it by `CUDA_VISIBLE_DEVICES` are not handed out.

    Raises:
        PlacementError: There are too few GPUs, one that is wanted does not exist or is hidden, or two engines want
            the same and do not both say that they share it.
    """
    seen = visible(present, environ)
    for wish in wishes:
        _check(wish, present, seen)
    taken = _taken(wishes)
    free = [device for device in seen if device not in taken]
    alone = not present or (len(wishes) == 1 and wishes[0].gpus is None)
    needed = sum(wish.size for wish in wishes if wish.gpus is None)
    if present and needed > len(free):
        raise PlacementError(f"they need {needed} GPUs, and {len(free)} of {len(seen)} are free")
    following = iter(free)

    def given(wish: Wish) -> tuple[str, ...]:
        if wish.gpus is not None:
            return tuple(str(index) for index in wish.gpus)
        return () if alone else tuple(next(following) for _ in range(wish.size))

    return tuple(given(wish) for wish in wishes)


def visible(present: Sequence[int], environ: Mapping[str, str]) -> list[str]:
    """The GPUs that programs started with this environment see: those that `CUDA_VISIBLE_DEVICES` lists, else all.

    CUDA stops at the first that is none, such as -1.
    """
    said = environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return [str(index) for index in present]
    parts = [part.strip() for part in said.split(",")]
    return list(itertools.takewhile(lambda part: part and not part.startswith("-"), parts))


def _check(wish: Wish, present: Sequence[int], seen: Sequence[str]) -> None:
    if wish.gpus is None:
        return
    if missing := set(wish.gpus) - set(present):
        raise PlacementError(f"there is no GPU {min(missing)}; NVML shows {list(present) or 'none'}")
    # Where UUIDs are listed, nothing tells which index they are.
    if all(device.isdecimal() for device in seen):
        for index in wish.gpus:
            if str(index) not in seen:
                raise PlacementError(f"GPU {index} is hidden from kvgate by CUDA_VISIBLE_DEVICES={','.join(seen)}")
    if len(set(wish.gpus)) < len(wish.gpus):
        raise PlacementError(f"one engine cannot have a GPU twice: {list(wish.gpus)}")
    if wish.size > len(wish.gpus):
        raise PlacementError(
            f"an engine is told to run on {wish.size} GPUs (tensor x pipeline x data parallel size), and `gpus` names "
            f"{len(wish.gpus)}: {list(wish.gpus)}"
        )


def _taken(wishes: Sequence[Wish]) -> set[str]:
    """The GPUs that are configured for some engine."""
    holders: dict[int, Wish] = {}
    for wish in wishes:
        for index in wish.gpus or ():
            if index in holders and not (wish.shares and holders[index].shares):
                raise PlacementError(
                    f"two engines are to have GPU {index}; if they shall share it, say `share_gpu: true` for both"
                )
            holders[index] = wish
    return {str(index) for index in holders}
