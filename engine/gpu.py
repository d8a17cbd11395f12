"""PURE. A GPU and the processes on it, as NVML reports them. `gpu_placement.py` says which GPUs an engine sees."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU.

    Attributes:
        index: NVML's index, in PCI order.
        name: Product name.
        total_bytes: Its memory.
        free_bytes: Its free memory now.
        busy: Share of the last second in which it computed, 0 to 1; None if it does not report it (MIG).
    """

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    busy: float | None = None

    @property
    def used_bytes(self) -> int:
        """Memory in use by any process."""
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU, in bytes; None if the driver does not say, as in some containers."""

    pid: int
    used_bytes: int | None
