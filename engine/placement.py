"""PURE. Which GPUs each engine gets."""

from collections.abc import Mapping, Sequence


class PlacementError(ValueError):
    """The engines cannot be placed, for the reason the text gives."""


def place(
    wanted: Sequence[Sequence[int] | None], present: Sequence[int], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """Return, for each engine, what `CUDA_VISIBLE_DEVICES` shall hold for it; nothing to leave it as it is.

    Args:
        wanted: For each engine that is launched, the NVML indices configured. Where None, it gets one GPU that no
            other has, in order; a single engine sees all there are.
        present: NVML indices of this machine's GPUs.
        environ: kvgate's own environment: GPUs hidden from it by `CUDA_VISIBLE_DEVICES` are not handed out.

    Raises:
        PlacementError: There are too few GPUs, or one that is wanted does not exist.
    """
    taken = {index for group in wanted if group is not None for index in group}
    if missing := taken - set(present):
        raise PlacementError(f"there is no GPU {min(missing)}; NVML shows {list(present) or 'none'}")
    alone = not present or len(wanted) == 1
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = [part.strip() for part in visible.split(",") if part.strip()] if visible else [str(i) for i in present]
    free = [device for device in devices if device not in {str(index) for index in taken}]
    unplaced = wanted.count(None)
    if not alone and unplaced > len(free):
        raise PlacementError(f"{unplaced} engines need a GPU each, and {len(free)} of {len(devices)} are free")
    following = iter(free)

    def given(group: Sequence[int] | None) -> tuple[str, ...]:
        if group is not None:
            return tuple(str(index) for index in group)
        return () if alone else (next(following),)

    return tuple(given(group) for group in wanted)
