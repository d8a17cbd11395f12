"""The GPUs of this machine, as NVML sees them."""

from dataclasses import dataclass

import pynvml


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU. `index` is NVML's, in PCI order; the sizes are bytes."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int


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
    return Gpu(index, name, int(memory.total), int(memory.free))


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
