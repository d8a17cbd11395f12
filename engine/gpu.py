"""The GPUs of this machine, as NVML sees them."""

from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU.

    Attributes:
        index: NVML's, in PCI order.
        name: Of the product.
        total_bytes: Its memory.
        free_bytes: Of it free now.
        busy: Share of the last second in which it computed, 0 to 1; None where it does not tell (MIG).
    """

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    busy: float | None = None

    @property
    def used_bytes(self) -> int:
        """Memory in use, by anybody."""
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU. Bytes; None where the driver does not say, as in some containers."""

    pid: int
    used_bytes: int | None


def gpus() -> tuple[Gpu, ...]:
    """Return every GPU present; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_read(index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _read(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(index, name, int(memory.total), int(memory.free), _busy(handle))


def _busy(handle: Any) -> float | None:
    try:
        return int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except pynvml.NVMLError:
        return None


def holders(index: int) -> tuple[Holder, ...]:
    """Return who holds memory of a GPU, by NVML's index, computing or drawing; none where the driver does not say."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found = [
            *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
            *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        ]
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
    held = {int(process.pid): process.usedGpuMemory for process in found}
    return tuple(Holder(pid, None if used is None else int(used)) for pid, used in sorted(held.items()))
