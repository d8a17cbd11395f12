"""The configured endpoints, each with its monitor and client: added, changed and removed while kvgate serves."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

import httpx
import structlog

from gateway.admission.events import EndpointId
from gateway.app.activity import Activity
from gateway.app.opened import Access
from gateway.config.settings import Settings
from gateway.endpoints.monitor import EndpointMonitor
from gateway.ops.metrics import Metrics
from gateway.pools.directory import Directory, Endpoint
from gateway.relay.http_upstream import HttpUpstream

_POLL = 0.1
"""Seconds between two checks whether an endpoint being removed still has requests."""
_TAKE_OVER = 10.0
"""Seconds for which an endpoint being removed still takes work while the new ones are probed."""
_log = structlog.get_logger("kvgate.endpoints")


class Watched:
    """Keeps a directory equal to the configured endpoints.

    Args:
        directory: of the endpoints.
        upstream: is told each endpoint's TLS context.
        metrics: forget removed endpoints.
        settings: those in force.
        clock: monotonic seconds.
        spawn: runs named background work until it ends, or the gateway does.
        launched: addresses of engines that kvgate launches.
    """

    def __init__(
        self,
        directory: Directory,
        upstream: HttpUpstream,
        metrics: Metrics,
        *,
        settings: Callable[[], Settings],
        clock: Callable[[], float],
        spawn: Callable[[str, Callable[[], Awaitable[None]]], asyncio.Task[None]],
        launched: Container[str],
    ) -> None:
        self._directory = directory
        self._upstream = upstream
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._launched = launched
        self._clients: dict[EndpointId, httpx.AsyncClient] = {}
        self._watching: dict[EndpointId, asyncio.Task[None]] = {}
        self._leaving: dict[EndpointId, asyncio.Task[None]] = {}

    def client(self, endpoint: Endpoint) -> httpx.AsyncClient:
        """The client for questions to an endpoint, apart from its requests."""
        return self._clients[endpoint.id]

    def add(self, access: Access) -> Endpoint:
        """Add a configured endpoint; `start` begins to watch it."""
        identifier = EndpointId(access.settings.address)
        client = self._clients[identifier] = self._new_client(access)
        self._upstream.trust(access.base_url, access.tls)
        monitor = EndpointMonitor(
            identifier,
            access.settings,
            self._settings().health,
            client=client,
            listener=self._directory,
            clock=self._clock,
            look=Activity(identifier, self._clock).look,
        )
        monitor.launched = identifier in self._launched
        endpoint = Endpoint(identifier, access.base_url, access.api_key, access.model, monitor)
        self._directory.add(endpoint)
        return endpoint

    def start(self) -> None:
        """Watch all endpoints that are not watched yet."""
        for endpoint in self._directory.endpoints.values():
            if endpoint.id not in self._watching:
                self._watching[endpoint.id] = self._spawn(f"monitor of {endpoint.id}", endpoint.monitor.run)

    def follow(self, configured: Mapping[EndpointId, Access]) -> None:
        """Change to these endpoints. One that is not among them takes no new work and finishes what it has."""
        coming = [self.add(access) for key, access in configured.items() if key not in self._directory.endpoints]
        for endpoint in self._directory.endpoints.values():
            if (access := configured.get(endpoint.id)) is not None:
                self._renew(endpoint, access)
            elif endpoint.id not in self._leaving:
                leaving = functools.partial(self._let_go, endpoint, coming)
                self._leaving[endpoint.id] = self._spawn(f"leaving of {endpoint.id}", leaving)
        self.start()

    async def close(self) -> None:
        """Close every client."""
        for client in self._clients.values():
            await client.aclose()

    def _renew(self, endpoint: Endpoint, access: Access) -> None:
        """Use another way to reach an endpoint from the next request on."""
        leaving = self._leaving.pop(endpoint.id, None)
        if leaving is not None:
            leaving.cancel()
            endpoint.monitor.undrain()
        self._upstream.forget(endpoint.base_url)
        self._upstream.trust(access.base_url, access.tls)
        endpoint.base_url, endpoint.api_key = access.base_url, access.api_key
        self._spawn("closing", functools.partial(self._close_later, self._clients[endpoint.id]))
        client = self._clients[endpoint.id] = self._new_client(access)
        endpoint.monitor.govern(access.settings, self._settings().health, client)

    async def _let_go(self, endpoint: Endpoint, coming: Sequence[Endpoint]) -> None:
        """Forget an endpoint once it is empty and no waiting request could only go there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER):
                for other in coming:
                    await other.monitor.probed.wait()
        endpoint.monitor.drain()
        while self._needed(endpoint):
            await asyncio.sleep(_POLL)
            endpoint.monitor.drain()
        del self._leaving[endpoint.id]
        self._watching.pop(endpoint.id).cancel()
        self._directory.remove(endpoint)
        self._upstream.forget(endpoint.base_url)
        self._metrics.forget_endpoint(endpoint.id)
        self._spawn("closing", functools.partial(self._close_later, self._clients.pop(endpoint.id)))
        _log.info("endpoint removed", endpoint=endpoint.id)

    def _needed(self, endpoint: Endpoint) -> bool:
        if endpoint.pool is None:
            return False
        state = endpoint.pool.driver.controller.snapshot(self._clock())
        if any(known.in_flight for known in state.endpoints if known.id == endpoint.id):
            return True
        return state.queue.depth > 0 and len(endpoint.pool.endpoints) == 1

    async def _close_later(self, client: httpx.AsyncClient) -> None:
        """Close a client once its open questions have been answered."""
        try:
            await asyncio.sleep(2 * self._settings().health.timeout)
        finally:
            await client.aclose()

    def _new_client(self, access: Access) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {access.api_key}"} if access.api_key is not None else {}
        limits = httpx.Limits(keepalive_expiry=self._settings().upstream.keepalive)
        return httpx.AsyncClient(verify=access.tls, headers=headers, limits=limits, trust_env=False)
