"""Reading a Prometheus page: enough of the text format for counters, gauges and histograms."""

import asyncio
import re
from collections.abc import Iterable
from typing import Self

import aiohttp

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            found = SAMPLE.match(line)
            if found is not None:
                name, labels, value = found.groups()
                self._samples.append((name, dict(LABEL.findall(labels or "")), float(value)))

    def values(self, name: str) -> list[float]:
        """A metric with each of its labels; nothing where the page has none."""
        return [value for sample, _, value in self._samples if sample == name]

    def total(self, name: str) -> float:
        """Sum of a metric over its labels.

        Raises:
            KeyError: the page has no such metric; nothing missing is taken for zero.
        """
        values = self.values(name)
        if not values:
            raise KeyError(name)
        return sum(values)

    def highest(self, name: str) -> float:
        """Greatest value of a metric over its labels.

        Raises:
            KeyError: the page has no such metric.
        """
        values = self.values(name)
        if not values:
            raise KeyError(name)
        return max(values)

    def over(self, histogram: str, bound: float) -> float:
        """How many observations of a histogram lie above the greatest bucket that is not above `bound`."""
        buckets: dict[float, float] = {}
        for sample, labels, value in self._samples:
            if sample == f"{histogram}_bucket":
                edge = float(labels["le"])
                buckets[edge] = buckets.get(edge, 0.0) + value
        below = max((edge for edge in buckets if edge <= bound), default=None)
        return self.total(f"{histogram}_count") - (0.0 if below is None else buckets[below])


async def scrape(session: aiohttp.ClientSession, url: str) -> Page:
    """Fetch and read a page."""
    async with session.get(url) as response:
        response.raise_for_status()
        return Page(await response.text())


class PeakWatch:
    """Scrapes while a run goes on and keeps the greatest value of each gauge; a scrape that fails, fails the run."""

    def __init__(self, session: aiohttp.ClientSession, url: str, gauges: Iterable[str], interval: float) -> None:
        self.peaks = dict.fromkeys(gauges, 0.0)
        self._session = session
        self._url = url
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        (error,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(error, Exception):
            raise error

    async def _watch(self) -> None:
        while True:
            page = await scrape(self._session, self._url)
            for name, peak in self.peaks.items():
                self.peaks[name] = max(peak, page.highest(name))
            await asyncio.sleep(self._interval)
