import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.admission.events import EndpointId
from gateway.app.reached import Reached
from gateway.config.settings import Settings
from gateway.pools.directory import Directory, Endpoint
from gateway.runtime.background import Background
from tests.unit.app.configured import access
from tests.until import until

ONE, TWO = (EndpointId(f"127.0.0.1:{port}") for port in (1, 2))


class World:
    """A directory of the configured endpoints. It is the upstream, too, and notes whom it is to trust."""

    def __init__(self) -> None:
        self.trusted: dict[str, ssl.SSLContext] = {}
        self.background = Background()
        nothing: Any = None
        self.directory = Directory(nothing, nothing, nothing, nothing, self._left)
        upstream: Any = self
        self.reached = Reached(
            self.directory,
            upstream,
            settings=lambda: Settings.model_validate({"health": {"interval": 0.05, "timeout": 0.05}}),
            background=self.background,
            watch=self._watch,
        )

    def trust(self, base_url: str, context: ssl.SSLContext) -> None:
        self.trusted[base_url] = context

    def forget(self, base_url: str) -> None:
        del self.trusted[base_url]

    def _left(self, endpoint: Endpoint) -> None:
        self.reached.left(endpoint)

    def _watch(self, endpoint: EndpointId) -> Any:
        return f"watch over {endpoint}"

    def endpoint(self, name: EndpointId) -> Endpoint:
        return self.directory.endpoints[name]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.background.stop()
    await world.reached.close()


async def test_each_configured_endpoint_is_known_with_what_its_requests_need(world: World) -> None:
    configured = access(f"http://{ONE}", f"http://{TWO}", api_key="one")
    world.reached.follow(configured)
    assert set(world.directory.endpoints) == {ONE, TWO}
    endpoint = world.endpoint(ONE)
    assert (endpoint.base_url, endpoint.api_key) == (f"http://{ONE}", "one")
    assert (endpoint.settings, endpoint.watch) == (configured[ONE].model, f"watch over {ONE}")
    assert world.trusted == {f"http://{name}": configured[name].tls for name in (ONE, TWO)}
    assert world.reached.client(endpoint).headers["authorization"] == "Bearer one"
    assert world.reached.client(endpoint) is not world.reached.client(world.endpoint(TWO))


async def test_one_that_is_reached_in_another_way_stays_the_one_it_is(world: World) -> None:
    world.reached.follow(access(f"http://{ONE}", api_key="one"))
    (endpoint,) = world.directory.endpoints.values()
    client = world.reached.client(endpoint)
    configured = access(f"http://{ONE}/below", api_key="two")
    world.reached.follow(configured)
    assert world.directory.endpoints == {endpoint.id: endpoint}
    assert (endpoint.base_url, endpoint.api_key) == (f"http://{ONE}/below", "two")
    assert world.trusted == {f"http://{ONE}/below": configured[ONE].tls}
    assert world.reached.client(endpoint).headers["authorization"] == "Bearer two"
    assert not client.is_closed, "a question may be under way"
    await until(lambda: client.is_closed)


async def test_one_that_is_configured_no_more_is_reached_until_it_is_gone(world: World) -> None:
    world.reached.follow(access(f"http://{ONE}", f"http://{TWO}"))
    endpoint = world.endpoint(ONE)
    world.reached.follow(access(f"http://{TWO}"))
    client = world.reached.client(endpoint)
    assert not client.is_closed
    assert endpoint.base_url in world.trusted
    world.directory.gone(ONE)
    assert set(world.directory.endpoints) == {TWO}
    assert set(world.trusted) == {f"http://{TWO}"}
    with pytest.raises(KeyError):
        world.reached.client(endpoint)
    await until(lambda: client.is_closed)


async def test_one_that_is_configured_again_before_it_is_gone_begins_anew(world: World) -> None:
    configured = access(f"http://{ONE}", api_key="one")
    world.reached.follow(configured)
    before = world.endpoint(ONE)
    world.reached.follow({})
    world.reached.follow(configured)
    world.directory.gone(ONE)
    assert world.endpoint(ONE) is not before
    assert set(world.trusted) == {f"http://{ONE}"}
    assert world.reached.client(world.endpoint(ONE)).headers["authorization"] == "Bearer one"


async def test_every_client_is_closed_at_the_end(world: World) -> None:
    world.reached.follow(access(f"http://{ONE}", f"http://{TWO}"))
    clients = [world.reached.client(endpoint) for endpoint in world.directory.endpoints.values()]
    await world.reached.close()
    assert all(client.is_closed for client in clients)
