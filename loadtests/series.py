"""What engines and gateways say of themselves while a run goes on, as series over time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import aiohttp

from loadtests.prometheus import Page, scrape

IDLE_TIMEOUT = 120.0
IDLE_INTERVAL = 0.25


@dataclass(frozen=True, slots=True)
class Gauge:
    """One series, read off every page that has the metric."""

    metric: str
    join: Callable[[Sequence[float]], float] = sum
    """What several pages, or several endpoints of one page, make together."""


GAUGES = {
    "KV": Gauge("vllm:kv_cache_usage_perc", max),
    "running": Gauge("vllm:num_requests_running"),
    "waiting in engine": Gauge("vllm:num_requests_waiting"),
    "queued in kvgate": Gauge("kvgate_queue_depth"),
    "preemptions": Gauge("vllm:num_preemptions_total"),
}
COUNTERS = {"preemptions"}
"""Series that only grow: what a run is told is how far they moved."""
BUSY = ("running", "waiting in engine", "queued in kvgate")


def read(pages: Sequence[Page]) -> dict[str, float]:
    """The series that the pages have; one that no page has is missing, not zero."""
    found = {name: [value for page in pages for value in page.values(gauge.metric)] for name, gauge in GAUGES.items()}
    return {name: GAUGES[name].join(values) for name, values in found.items() if values}


class Sampler:
    """Scrapes a target's pages at an interval while its block runs; a scrape that fails leaves a hole."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], interval: float, epoch: float) -> None:
        self.times: list[float] = []
        """Seconds after the epoch, of `time.monotonic()`."""
        self.samples: list[dict[str, float]] = []
        self._session = session
        self._urls = urls
        self._interval = interval
        self._epoch = epoch
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._sample()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._sample()

    @property
    def series(self) -> dict[str, list[float]]:
        """Every series that was seen, a value for each of `times`; counters from 0, holes NaN."""
        names = [name for name in GAUGES if any(name in sample for sample in self.samples)]
        found = {name: [sample.get(name, float("nan")) for sample in self.samples] for name in names}
        for name in COUNTERS & set(names):
            start = next(value for value in found[name] if value == value)  # noqa: PLR0124 - not NaN
            found[name] = [value - start for value in found[name]]
        return found

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._sample()

    async def _sample(self) -> None:
        at = time.monotonic() - self._epoch
        self.samples.append(await sample(self._session, self._urls))
        self.times.append(at)


async def sample(session: aiohttp.ClientSession, urls: Sequence[str]) -> dict[str, float]:
    """The series as they are now."""
    pages = await asyncio.gather(*(scrape(session, url) for url in urls), return_exceptions=True)
    return read([page for page in pages if isinstance(page, Page)])


async def idle(session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
    """Wait until nothing runs, so that no run pays for the one before.

    Raises:
        TimeoutError: something still runs after two minutes; something else loads the engine.
    """
    async with asyncio.timeout(IDLE_TIMEOUT):
        while True:
            now = await sample(session, urls)
            if not any(now.get(name) for name in BUSY):
                return
            await asyncio.sleep(IDLE_INTERVAL)
