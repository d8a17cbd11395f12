"""A gateway process beside its application."""

import asyncio
import gc
from types import SimpleNamespace

import pytest

from gateway.app.parent import Parent
from gateway.serve import lifetime as process
from tests.until import PATIENCE


@pytest.fixture
def collector():
    gc.unfreeze()
    yield
    gc.unfreeze()


async def frozen():
    """Until something was taken out of garbage collection; put it back."""
    async with asyncio.timeout(PATIENCE):
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


async def test_a_state_that_this_process_sees_no_more_is_taken_back(monkeypatch):
    """In a tier another gateway decides: a hang that this one saw may be over."""
    monkeypatch.setattr(process, "_LOOK", 0.0)
    parent = Parent()
    application = SimpleNamespace(
        endpoints=[SimpleNamespace(id="h:1", state="hung", reason="no  progress")], parent=parent
    )
    watching = asyncio.create_task(process._watch_states(application))
    for endpoints in (application.endpoints, application.endpoints, [], [], application.endpoints):
        application.endpoints = endpoints
        for _ in range(3):
            await asyncio.sleep(0)
    watching.cancel()
    told = [await parent.next_line() for _ in range(3)]
    assert [line.rstrip() for line in told] == ["hung h:1 no progress", "unseen h:1", "hung h:1 no progress"]
