"""The GPUs of this machine, as NVML sees them."""

import contextlib
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
    """Return every GPU present that tells of its memory; none where there is no driver.

    One that shares the machine's memory does not (DGX Spark, Jetson), nor one that fell off the bus.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(gpu for index in range(pynvml.nvmlDeviceGetCount()) if (gpu := _read(index)) is not None)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _read(index: int) -> Gpu | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return None
    return Gpu(index, name, int(memory.total), int(memory.free), _busy(handle)) if memory.total else None


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
    held: dict[int, Any] = {}
    try:
        for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            with contextlib.suppress(pynvml.NVMLError):
                held |= {
                    int(process.pid): process.usedGpuMemory for process in ask(pynvml.nvmlDeviceGetHandleByIndex(index))
                }
    finally:
        pynvml.nvmlShutdown()
    return tuple(Holder(pid, None if used is None else int(used)) for pid, used in sorted(held.items()))
