"""The time series of a run, scraped from the metrics of engines and gateways."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

IDLE_TIMEOUT = 120.0
IDLE_INTERVAL = 0.25


@dataclass(frozen=True, slots=True)
class Gauge:
    """One series, read from every page with the metric."""

    metric: str
    join: Callable[[Sequence[float]], float] = sum
    """How several pages, or several endpoints of one page, combine."""


GAUGES = {
    "KV": Gauge("vllm:kv_cache_usage_perc", max),
    "running": Gauge("vllm:num_requests_running"),
    "waiting in engine": Gauge("vllm:num_requests_waiting"),
    "queued in kvgate": Gauge("kvgate_queue_depth"),
    "preemptions": Gauge("vllm:num_preemptions_total"),
}
COUNTERS = {"preemptions"}
"""Counters: a run reports their increase."""
BUSY = ("running", "waiting in engine", "queued in kvgate")


Page = Mapping[str, Sequence[float]]
"""One scrape: each metric's values over its labels."""


def page(text: str) -> Page:
    """Read a page in Prometheus' text format."""
    values: dict[str, list[float]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name].append(sample.value)
    return values


def read(pages: Sequence[Page]) -> dict[str, float]:
    """The series that the pages have. One that no page has is missing, not zero."""
    found = {name: [value for page in pages for value in page.get(gauge.metric, ())] for name, gauge in GAUGES.items()}
    return {name: GAUGES[name].join(values) for name, values in found.items() if values}


class Sampler:
    """Scrapes a target's pages at an interval while its block runs. A failed scrape leaves a hole."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], interval: float, epoch: float) -> None:
        self.times: list[float] = []
        """Seconds from the epoch, a time of `time.monotonic()`, to each sample."""
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
        """Every series seen, with a value for each of `times`. Counters begin at 0; holes are NaN."""
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
    """The current values of the series."""
    pages = await asyncio.gather(*(_scrape(session, url) for url in urls), return_exceptions=True)
    return read([page for page in pages if not isinstance(page, BaseException)])


async def _scrape(session: aiohttp.ClientSession, url: str) -> Page:
    async with session.get(url) as response:
        response.raise_for_status()
        return page(await response.text())


async def idle(session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
    """Wait until nothing runs, so that no run suffers from the one before.

    Raises:
        TimeoutError: requests still run after two minutes, so something else loads the engine.
    """
    async with asyncio.timeout(IDLE_TIMEOUT):
        while True:
            now = await sample(session, urls)
            if not any(now.get(name) for name in BUSY):
                return
            await asyncio.sleep(IDLE_INTERVAL)
