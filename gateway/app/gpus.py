"""The watch over this machine's GPUs: one log line a minute, a warning when one fills up, gauges.

NVML is read once a minute, off the event loop; a scrape shows the last reading.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog
from prometheus_client.core import GaugeMetricFamily

from engine.gpu import Gpu
from engine.nvml import gpus

INTERVAL = 60.0
"""Seconds between two looks."""
WARN_ABOVE = 0.85
QUIET_BELOW = 0.80
"""Shares of a GPU's memory in use. A warning comes once, and again only after the use fell below the second."""

_log = structlog.get_logger("kvgate.gpu")


class GpuWatch:
    """Reads the GPUs while `run` runs. Also a collector of metrics, without samples if there is no GPU.

    Args:
        read: reads all GPUs; blocks.
    """

    def __init__(self, read: Callable[[], Sequence[Gpu]] = gpus) -> None:
        self._read = read
        self._seen: Sequence[Gpu] = ()
        self._warned: set[int] = set()

    async def run(self) -> None:
        """Read every `INTERVAL` seconds; end at once on a machine without GPUs."""
        while True:
            self.take(await asyncio.to_thread(self._read))
            if not self._seen:
                return
            await asyncio.sleep(INTERVAL)

    def take(self, seen: Sequence[Gpu]) -> None:
        """Take one reading and log it."""
        self._seen = seen
        for gpu in seen:
            full = gpu.used_bytes / gpu.total_bytes
            said = {
                "gpu": gpu.index,
                "name": gpu.name,
                "memory_used": f"{full:.0%} of {gpu.total_bytes / 2**30:.1f} GiB",
                "utilization": None if gpu.busy is None else f"{gpu.busy:.0%}",
            }
            if full >= WARN_ABOVE and gpu.index not in self._warned:
                self._warned.add(gpu.index)
                _log.warning(
                    "a GPU's memory is nearly full",
                    hint="an engine takes its share (--gpu-memory-utilization) and keeps it; all else must fit into "
                    "the rest",
                    **said,
                )
                continue
            if full < QUIET_BELOW:
                self._warned.discard(gpu.index)
            _log.info("gpu", **said)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, for a registry."""
        used = GaugeMetricFamily("kvgate_gpu_memory_used_bytes", "Memory of a GPU in use, by anybody.", labels=["gpu"])
        total = GaugeMetricFamily("kvgate_gpu_memory_bytes", "Memory of a GPU.", labels=["gpu"])
        busy = GaugeMetricFamily("kvgate_gpu_utilization", "Share of time a GPU computed, 0 to 1.", labels=["gpu"])
        for gpu in self._seen:
            used.add_metric([str(gpu.index)], gpu.used_bytes)
            total.add_metric([str(gpu.index)], gpu.total_bytes)
            if gpu.busy is not None:
                busy.add_metric([str(gpu.index)], gpu.busy)
        return iter((used, total, busy))
