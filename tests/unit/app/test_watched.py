import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from gateway.app.opened import opened
from gateway.app.watched import Watched
from gateway.config.settings import Settings, UpstreamSettings
from gateway.endpoints.health import State
from gateway.ops.metrics import Metrics
from gateway.pools.directory import Directory
from gateway.relay.http_upstream import HttpUpstream
from tests.until import until


def access(*urls, **fields):
    """Nobody listens at any of them."""
    models = [{"endpoints": [{"url": url, **fields}]} for url in urls]
    return opened(Settings.model_validate({"models": models})).endpoints


@pytest.fixture
async def world():
    tasks = set()

    def spawn(_name, work):
        task = asyncio.create_task(work())
        tasks.add(task)
        return task

    directory = Directory(None, None, lambda _: None, lambda _: None)
    settings = Settings(health={"interval": 0.05, "timeout": 0.05})
    watched = Watched(
        directory,
        HttpUpstream(UpstreamSettings),
        Metrics("0"),
        settings=lambda: settings,
        clock=asyncio.get_running_loop().time,
        spawn=spawn,
        launched={"127.0.0.1:1"},
    )
    yield SimpleNamespace(directory=directory, watched=watched)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await watched.close()


async def test_endpoints_are_those_that_are_configured(world):
    directory, watched = world.directory, world.watched
    watched.follow(access("http://127.0.0.1:1", "http://127.0.0.1:2"))
    assert set(directory.endpoints) == {"127.0.0.1:1", "127.0.0.1:2"}
    assert directory.endpoints["127.0.0.1:1"].monitor.launched
    await until(lambda: all(endpoint.monitor.probed.is_set() for endpoint in directory.endpoints.values()))
    watched.follow(access("http://127.0.0.1:2", "http://127.0.0.1:3"))
    await until(lambda: set(directory.endpoints) == {"127.0.0.1:2", "127.0.0.1:3"})


async def test_one_that_is_reached_in_another_way_stays_the_one_it_is(world):
    world.watched.follow(access("http://127.0.0.1:1", api_key="one"))
    (endpoint,) = world.directory.endpoints.values()
    client = world.watched.client(endpoint)
    world.watched.follow(access("http://127.0.0.1:1/below", api_key="two"))
    assert world.directory.endpoints == {endpoint.id: endpoint}
    assert (endpoint.base_url, endpoint.api_key) == ("http://127.0.0.1:1/below", "two")
    assert world.watched.client(endpoint).headers["authorization"] == "Bearer two"
    assert not client.is_closed, "a question may be under way"
    await until(lambda: client.is_closed)


async def test_one_that_is_needed_stays_until_it_is_not(world):
    in_flight = [SimpleNamespace(id="127.0.0.1:1", in_flight=1)]
    state = SimpleNamespace(endpoints=in_flight, queue=SimpleNamespace(depth=1))
    core = SimpleNamespace(snapshot=lambda _now: state)
    world.watched.follow(access("http://127.0.0.1:1"))
    (endpoint,) = world.directory.endpoints.values()
    endpoint.pool = SimpleNamespace(
        name="m", names=("m",), endpoints={endpoint.id: endpoint}, driver=SimpleNamespace(controller=core, handle=print)
    )
    world.directory.pools["m"] = endpoint.pool
    world.watched.follow({})
    await until(lambda: endpoint.monitor.status.state is State.DRAINING)
    in_flight.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await until(lambda: not world.directory.endpoints)
    assert world.directory.endpoints, "somebody waits who could go nowhere else"
    state.queue.depth = 0
    await until(lambda: not world.directory.endpoints)
    assert world.directory.pools == {}
