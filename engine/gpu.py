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
