"""A gateway process beside its application."""

import asyncio
import gc
from types import SimpleNamespace

import pytest

from gateway.serve import gateway_process as process


@pytest.fixture
def collector():
    gc.unfreeze()
    yield
    gc.unfreeze()


async def frozen():
    """Until something was taken out of garbage collection; put it back."""
    async with asyncio.timeout(10):
        while not gc.get_freeze_count():  # noqa: ASYNC110  # the collector tells nobody
            await asyncio.sleep(0)
    gc.unfreeze()


async def test_what_stays_is_collected_once_at_the_start_and_once_for_each_tokenizer(collector, monkeypatch):
    monkeypatch.setattr(process, "_LOOK", 0.0)
    application = SimpleNamespace(loaded=frozenset())
    sparing = asyncio.create_task(process._spare_collector(application))
    await frozen()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not gc.get_freeze_count()
    application.loaded = frozenset({"model"})
    await frozen()
    sparing.cancel()
