"""PURE. The placement of engines on GPUs: reads `CUDA_VISIBLE_DEVICES`, and makes it for each engine."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.spec import EngineSpec


class PlacementError(ValueError):
    """The engines cannot be placed. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The GPUs one launched engine needs.

    Attributes:
        gpus: The configured NVML indices; None for as many free ones as it needs.
        size: GPUs it runs on: its tensor times its pipeline times its data parallel size.
        shares: Whether it may share a card with another engine.
    """

    gpus: tuple[int, ...] | None = None
    size: int = 1
    shares: bool = False


def place(wishes: Sequence[Wish], present: Sequence[int], environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return the value of `CUDA_VISIBLE_DEVICES` for each engine; nothing to leave it unchanged.

    A single engine without configured GPUs sees all of them.

    Args:
        wishes: One for each engine.
        present: NVML indices of this machine's GPUs.
        environ: kvgate's own environment. GPUs that its `CUDA_VISIBLE_DEVICES` hides are not handed out.

    Raises:
        PlacementError: There are too few GPUs; a wanted one does not exist or is hidden; or two engines want the same
            one and do not both share it.
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
    """The GPUs that programs see in this environment: those that `CUDA_VISIBLE_DEVICES` lists, else all."""
    said = environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in present] if said is None else listed(said)


def listed(said: str) -> list[str]:
    """The GPUs in a value of `CUDA_VISIBLE_DEVICES`. Empty hides all; CUDA stops at the first invalid entry."""
    parts = [part.strip() for part in said.split(",")]
    return list(itertools.takewhile(lambda part: part and not part.startswith("-"), parts))


def devices(spec: EngineSpec, present: Sequence[int], environ: Mapping[str, str]) -> list[str]:
    """The GPUs that an engine started from this environment sees."""
    if spec.gpus and "CUDA_VISIBLE_DEVICES" not in spec.env:
        return list(spec.gpus)
    return visible(present, {**environ, **spec.env})


def _check(wish: Wish, present: Sequence[int], seen: Sequence[str]) -> None:
    if wish.gpus is None:
        return
    if missing := set(wish.gpus) - set(present):
        raise PlacementError(f"there is no GPU {min(missing)}; NVML shows {list(present) or 'none'}")
    # Nothing maps a listed UUID to its index.
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
    """The GPUs configured for any engine."""
    holders: dict[int, Wish] = {}
    for wish in wishes:
        for index in wish.gpus or ():
            if index in holders and not (wish.shares and holders[index].shares):
                raise PlacementError(
                    f"two engines are to have GPU {index}; if they shall share it, say `share_gpu: true` for both"
                )
            holders[index] = wish
    return {str(index) for index in holders}
