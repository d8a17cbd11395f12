"""A kvgate under a load that stands still, so that all that shows it must show the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.commands.top.following import Kvgate, Lost
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import Running, gateway
from tests.until import until

QUIET = {"health": {"hung_after": 600}, "admission": {"ttft_target": 600, "queue": {"ttl": 600}}}
SIZE = FakeSettings(step_seconds=0.01, num_blocks=101, block_size=16, max_model_len=1000)


@contextlib.asynccontextmanager
async def frozen(engines: int = 1) -> AsyncIterator[Running]:
    """A kvgate with four requests that run on each engine, and three that wait; the engines do nothing more."""
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr("gateway.app.owner.INTERVAL", 0.2)
        fakes = [await stack.enter_async_context(FakeVllm(SIZE)) for _ in range(engines)]
        endpoints = [{"url": fake.url, "max_num_seqs": 4} for fake in fakes]
        models = [{"endpoints": endpoints, "tokenizer": "/nonexistent"}]
        kvgate = await stack.enter_async_context(gateway(*fakes, models=models, **QUIET))
        requests = [asyncio.create_task(kvgate.post(tokens=200, stream=True)) for _ in range(4 * engines + 3)]
        await until(lambda: all(_busy(fake) for fake in fakes))
        for fake in fakes:
            fake.freeze()
        await _settled(kvgate)
        yield kvgate
        for fake in fakes:
            fake.thaw()
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


def _busy(fake: FakeVllm) -> bool:
    return sum(each.generated > 30 for each in fake.scheduler.running) == 4


async def _settled(kvgate: Running) -> None:
    """Wait for a scrape after now and for two points of the history after that: from one to the other nothing moved."""
    begun = scraped = 0.0
    async with Kvgate(f"http://127.0.0.1:{kvgate.port}") as followed:
        async for picture in followed.follow():
            assert not isinstance(picture, Lost)
            begun = begun or picture.at
            oldest = min(endpoint.scraped or 0.0 for endpoint in picture.endpoints)
            if not scraped and oldest > begun + 0.1:  # it is told to a tenth of a second
                scraped = picture.at
            if scraped and sum(point.at > scraped for point in picture.points) >= 2:
                return
