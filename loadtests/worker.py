"""The client process, which sends its share of a run's requests, at their times or after earlier answers."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import uvloop

from loadtests.arrivals import Planned, closed_loop, open_loop
from loadtests.client import Address, Record, body, exchange
from loadtests.scenario import Scenario

REFUSED_PAUSE = 1.0
"""Seconds a waiting client stays away after a refusal without a retry time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run against one target, as described to every client process."""

    scenario: Scenario
    url: str
    model: str
    rate: float
    """Requests per second in a phase whose load is 1."""
    seed: int
    salt: str
    """Makes this run's prompts differ from any other's."""
    context: int | None
    """The model's longest sequence, in tokens."""
    headers: Mapping[str, Mapping[str, str]]
    """The headers each flow sends with its requests."""
    drain: float
    """Seconds after the last arrival after which an answer counts as lost."""
    only: str | None = None
    """The only flow that sends; None if all do."""


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of a client process."""

    records: list[Record]
    cpu: float
    """Seconds of CPU from the start to the end of its requests."""


def ready() -> bool:
    """Do nothing. A process that answers has imported everything."""
    return True


def work(run: Run, share: int, shares: int, epoch: float) -> Worked:
    """Send every `shares`-th request of a run, from number `share` on. `epoch` is a time of `time.monotonic()`."""
    worked: Worked = uvloop.run(_work(run, share, shares, epoch))
    return worked


async def _work(run: Run, share: int, shares: int, epoch: float) -> Worked:
    sender = _Sender(run, epoch)
    concurrency = run.scenario.concurrency
    if concurrency is None:
        planned = [p for p in open_loop(run.scenario, run.rate, run.seed, run.context) if run.only in (None, p.flow)]
        await sender.open(planned[share::shares])
    else:
        requests = itertools.islice(closed_loop(run.scenario, run.seed, run.context), share, None, shares)
        await sender.closed(requests, len(range(share, concurrency, shares)))
    return Worked(sender.records, time.process_time() - sender.cpu)


class _Sender:
    def __init__(self, run: Run, epoch: float) -> None:
        self.records: list[Record] = []
        self.cpu = time.process_time()
        self._run = run
        self._epoch = epoch
        self._address = Address.of(run.url)
        self._end = run.scenario.duration + run.drain

    async def open(self, planned: list[Planned]) -> None:
        self.cpu = time.process_time()
        async with asyncio.TaskGroup() as group:
            for request in planned:
                content = self._request(request)
                await asyncio.sleep(self._epoch + request.at - time.monotonic())
                group.create_task(self._send(request, content, request.at))

    async def closed(self, requests: Iterator[Planned], clients: int) -> None:
        await asyncio.sleep(self._epoch - time.monotonic())
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(requests))

    async def _client(self, requests: Iterator[Planned]) -> None:
        while (now := time.monotonic() - self._epoch) < self._run.scenario.duration:
            request = next(requests)
            record = await self._send(request, self._request(request), now)
            if record.loss is not None:
                await asyncio.sleep(REFUSED_PAUSE if record.retry_after is None else record.retry_after)

    async def _send(self, request: Planned, content: bytes, arrived: float) -> Record:
        record = Record(request, arrived)
        self.records.append(record)
        left = max(0.0, self._epoch + self._end - time.monotonic())
        await exchange(self._address, content, record, self._epoch, left)
        return record

    def _request(self, request: Planned) -> bytes:
        content = body(request, self._run.model, self._run.salt)
        return self._address.request(content, self._run.headers[request.flow])
