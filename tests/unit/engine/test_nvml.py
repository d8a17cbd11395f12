from types import SimpleNamespace

import pynvml
import pytest

from engine.gpu import Gpu, Holder
from engine.nvml import gpus, holders


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert gpus() == ()


def test_each_gpu_is_read_and_nvml_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    shut: list[bool] = []

    def utilization(index: int) -> SimpleNamespace:
        if index:  # as one that is partitioned (MIG)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=35)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: shut.append(True))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: f"NVIDIA H200 {handle}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(total=100, free=90))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", utilization)
    assert gpus() == (Gpu(0, "NVIDIA H200 0", 100, 90, 0.35), Gpu(1, "NVIDIA H200 1", 100, 90, None))
    assert gpus()[0].used_bytes == 10
    assert shut == [True, True]


def test_a_gpu_that_does_not_tell_of_its_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(index: int) -> SimpleNamespace:
        if index == 0:  # as one that shares the machine's memory
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=100 * (index == 1), free=0)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA GB10")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda _: SimpleNamespace(gpu=0))
    assert [gpu.index for gpu in gpus()] == [1]


def test_who_holds_memory_of_a_gpu_is_told_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    computing = [SimpleNamespace(pid=9, usedGpuMemory=100), SimpleNamespace(pid=3, usedGpuMemory=None)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: computing)
    drawing = [SimpleNamespace(pid=9, usedGpuMemory=100)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGraphicsRunningProcesses", lambda _: drawing)
    assert holders(0) == (Holder(3, None), Holder(9, 100))


def test_a_driver_that_does_not_say_who_holds_memory_says_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", refuses)
    assert holders(0) == ()
