import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from engine.gpu import Gpu
from gateway.app import gpus
from gateway.app.gpus import GpuWatch

GIB = 2**30


def card(used, busy=0.5, index=0):
    return Gpu(index, "NVIDIA H200", 100 * GIB, round((100 - used) * GIB), busy)


def levels(watch, *shares):
    with capture_logs() as logs:
        for share in shares:
            watch.take([card(share)])
    return [line["log_level"] for line in logs]


def test_each_look_is_a_line_for_each_gpu():
    with capture_logs() as logs:
        GpuWatch().take([card(40), card(60, None, 1)])
    assert [(line["gpu"], line["memory_used"], line["utilization"]) for line in logs] == [
        (0, "40% of 100.0 GiB", "50%"),
        (1, "60% of 100.0 GiB", None),
    ]


def test_a_gpu_that_fills_up_is_warned_of_once_until_it_was_well_below():
    shares = (84.9, 85, 92, 81, 86, 79, 86)
    assert levels(GpuWatch(), *shares) == ["info", "warning", "info", "info", "info", "info", "warning"]


def test_the_gauges_show_the_last_look_and_nothing_where_nothing_is_known():
    watch, registry = GpuWatch(), CollectorRegistry()
    registry.register(watch)
    assert registry.get_sample_value("kvgate_gpu_memory_bytes", {"gpu": "0"}) is None
    watch.take([card(25), card(50, None, 1)])
    values = [
        registry.get_sample_value(f"kvgate_gpu_{name}", {"gpu": gpu})
        for gpu in ("0", "1")
        for name in ("memory_used_bytes", "memory_bytes", "utilization")
    ]
    assert values == [25 * GIB, 100 * GIB, 0.5, 50 * GIB, 100 * GIB, None]
    assert b"kvgate_gpu_utilization" in generate_latest(registry)


async def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpus, "INTERVAL", 0.001)
    looks, enough = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def read():
        looks.append(1)
        if len(looks) == 3:
            loop.call_soon_threadsafe(enough.set)
        return [card(10)]

    watching = asyncio.create_task(GpuWatch(read).run())
    await asyncio.wait_for(enough.wait(), 10)
    watching.cancel()


async def test_a_machine_without_gpus_is_not_looked_at_again():
    await asyncio.wait_for(GpuWatch(tuple).run(), 10)
