"""PURE. Which GPUs each replica of an engine gets."""

from collections.abc import Mapping, Sequence


class PlacementError(ValueError):
    """The replicas cannot be placed, for the reason the text gives."""


def place(
    replicas: int,
    wanted: Sequence[Sequence[int]] | None,
    present: Sequence[int],
    environ: Mapping[str, str],
) -> tuple[tuple[str, ...], ...]:
    """Return, for each replica, what `CUDA_VISIBLE_DEVICES` shall hold for it; nothing to leave it as it is.

    Args:
        replicas: How many engines there are.
        wanted: NVML indices for each replica, as configured. Where not given, several replicas get one GPU each, in
            order, and a single one sees all there are.
        present: NVML indices of this machine's GPUs.
        environ: kvgate's own environment: GPUs hidden from it by `CUDA_VISIBLE_DEVICES` are not handed out.

    Raises:
        PlacementError: There are too few GPUs, or one that is wanted does not exist.
    """
    if wanted is not None:
        if len(wanted) != replicas:
            raise PlacementError(f"`gpus` names GPUs for {len(wanted)} replicas, and there are {replicas}")
        if missing := {index for group in wanted for index in group} - set(present):
            raise PlacementError(f"there is no GPU {min(missing)}; NVML shows {list(present) or 'none'}")
        return tuple(tuple(str(index) for index in group) for group in wanted)
    if not present or replicas == 1:
        return ((),) * replicas
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    free = [part.strip() for part in visible.split(",") if part.strip()] if visible else [str(i) for i in present]
    if replicas > len(free):
        raise PlacementError(f"{replicas} replicas need a GPU each, and there are {len(free)}")
    return tuple((device,) for device in free[:replicas])
