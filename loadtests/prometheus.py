"""Reading a Prometheus page: enough of the text format for counters, gauges and histograms."""

import re

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


async def scrape(session: aiohttp.ClientSession, url: str) -> Page:
    """Fetch and read a page."""
    async with session.get(url) as response:
        response.raise_for_status()
        return Page(await response.text())
