"""Owners' halls, for the tests of what they are made of."""

import asyncio

import pytest

from gateway.tier import hall
from gateway.tier.hall import DECLARED_WITHIN
from tests.unit.tier.halls import Election, World


@pytest.fixture
def nothing_to_keep(monkeypatch):
    """No messages about it but where a test is about them."""
    monkeypatch.setattr(hall, "WARM", 1e6)


@pytest.fixture
async def world():
    world = World()
    yield world
    world.hall.close()
    world.cores.close()


@pytest.fixture
async def tier():
    """An owner in a tier of several gateways."""
    tier = World(fronts=None, reign=Election())
    tier.election = tier.hall._reign
    tier.up()
    await asyncio.sleep(DECLARED_WITHIN)
    yield tier
    tier.hall.close()
    tier.cores.close()


@pytest.fixture
async def front(world):
    world.up()
    return await world.join()
