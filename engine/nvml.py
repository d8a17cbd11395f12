"""The GPUs of this machine, as NVML reports them."""

import contextlib
from typing import Any

import pynvml

from engine.gpu import Gpu, Holder


def gpus() -> tuple[Gpu, ...]:
    """Return every GPU that reports its memory; none without a driver.

    A GPU that shares the machine's memory (DGX Spark, Jetson) does not, nor does one that fell off the bus.
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
    """Return the processes with memory on a GPU (NVML's index), compute or graphics; none if the driver hides them."""
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
