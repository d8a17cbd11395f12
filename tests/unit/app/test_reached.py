import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.events import EndpointId
from gateway.app.reached import Reached
from gateway.pools.directory import Directory, Endpoint
from gateway.server.asgi import Headers
from gateway.tokens.engine_count import UnansweredError
from gateway.upstream.interface import ConnectFailedError
from tests.unit.app.configured import access

ONE, TWO = (EndpointId(f"127.0.0.1:{port}") for port in (1, 2))


class World:
    """A directory of the configured endpoints. It is the upstream, too, and notes whom it is to trust."""

    def __init__(self) -> None:
        self.trusted: dict[str, ssl.SSLContext | None] = {}
        self.asked: list[tuple[str, bytes | None]] = []
        self.failed: list[tuple[EndpointId, str]] = []
        """What the watches heard."""
        nothing: Any = None
        self.directory = Directory(nothing, nothing, nothing, nothing, self._left)
        upstream: Any = self
        self.forgotten: set[EndpointId] = set()
        """Those that the owner says are gone, or never knew."""
        self.reached = Reached(self.directory, upstream, watch=self._watch, forget=lambda name: name in self.forgotten)

    async def send(self, base_url: str, method: str, path: str, headers: Headers, body: bytes, **_more: Any) -> Any:
        self.asked.append((base_url, dict(headers).get(b"authorization")))
        (asked,) = (there for there in self.directory.endpoints.values() if there.base_url == base_url)
        assert asked.relayed == 1, "whoever comes meanwhile is sent elsewhere first"
        raise ConnectFailedError("nobody is here")

    async def asks(self, endpoint: Endpoint) -> tuple[str, bytes | None]:
        """Where a question to an endpoint goes, and with which key."""
        target = self.reached.target(endpoint)
        with pytest.raises(UnansweredError, match="nobody is here"):
            await target.ask("/tokenize", b"{}", silence=1, longest=1, most=1)
        assert self.failed.pop() == (endpoint.id, "nobody is here"), "so it is probed at once"
        assert (target.url, endpoint.relayed) == (endpoint.base_url, 0)
        return self.asked[-1]

    def trust(self, base_url: str, context: ssl.SSLContext | None) -> None:
        self.trusted[base_url] = context

    def forget(self, base_url: str) -> None:
        del self.trusted[base_url]

    def _left(self, endpoint: Endpoint) -> None:
        self.reached.left(endpoint)

    def _watch(self, endpoint: EndpointId) -> Any:
        return SimpleNamespace(over=endpoint, failed=lambda reason: self.failed.append((endpoint, reason)))

    def endpoint(self, name: EndpointId) -> Endpoint:
        return self.directory.endpoints[name]


@pytest.fixture
def world() -> World:
    return World()


async def test_each_configured_endpoint_is_known_with_what_its_requests_need(world: World) -> None:
    configured = access(f"https://{ONE}", f"https://{TWO}", api_key="one")
    world.reached.follow(configured)
    assert set(world.directory.endpoints) == {ONE, TWO}
    endpoint = world.endpoint(ONE)
    assert (endpoint.base_url, endpoint.api_key) == (f"https://{ONE}", "one")
    watch: Any = endpoint.watch
    assert (endpoint.settings, watch.over) == (configured[ONE].model, ONE)
    assert world.trusted == {f"https://{name}": configured[name].tls for name in (ONE, TWO)}
    assert await world.asks(endpoint) == (f"https://{ONE}", b"Bearer one")
    assert await world.asks(world.endpoint(TWO)) == (f"https://{TWO}", b"Bearer one")


async def test_one_that_is_reached_in_another_way_stays_the_one_it_is(world: World) -> None:
    world.reached.follow(access(f"https://{ONE}", api_key="one"))
    (endpoint,) = world.directory.endpoints.values()
    configured = access(f"https://{ONE}/below", api_key="two")
    world.reached.follow(configured)
    assert world.directory.endpoints == {endpoint.id: endpoint}
    assert (endpoint.base_url, endpoint.api_key) == (f"https://{ONE}/below", "two")
    assert world.trusted == {f"https://{ONE}/below": configured[ONE].tls}
    assert await world.asks(endpoint) == (f"https://{ONE}/below", b"Bearer two")


async def test_one_that_is_configured_no_more_is_reached_until_it_is_gone(world: World) -> None:
    world.reached.follow(access(f"https://{ONE}", f"https://{TWO}"))
    endpoint = world.endpoint(ONE)
    world.reached.follow(access(f"https://{TWO}"))
    assert endpoint.base_url in world.trusted
    world.directory.gone(ONE)
    assert set(world.directory.endpoints) == {TWO}
    assert set(world.trusted) == {f"https://{TWO}"}


async def test_one_that_was_gone_before_it_was_configured_no_more_does_not_stay(world: World) -> None:
    world.reached.follow(access(f"https://{ONE}", f"https://{TWO}"))
    world.directory.gone(ONE)
    assert set(world.directory.endpoints) == {ONE, TWO}, "it may come back"
    world.forgotten = {ONE}
    world.reached.follow(access(f"https://{TWO}"))
    assert set(world.directory.endpoints) == {TWO}
    assert set(world.trusted) == {f"https://{TWO}"}


async def test_one_that_is_configured_again_before_it_is_gone_begins_anew(world: World) -> None:
    configured = access(f"https://{ONE}", api_key="one")
    world.reached.follow(configured)
    before = world.endpoint(ONE)
    world.reached.follow({})
    world.reached.follow(configured)
    world.directory.gone(ONE)
    assert world.endpoint(ONE) is not before
    assert set(world.trusted) == {f"https://{ONE}"}
    assert await world.asks(world.endpoint(ONE)) == (f"https://{ONE}", b"Bearer one")
