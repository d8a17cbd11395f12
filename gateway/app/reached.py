"""The endpoints as requests reach them: their addresses, keys and certificates, changed while kvgate serves."""

from collections.abc import Callable, Mapping

import httpx

from gateway.admission.events import EndpointId
from gateway.app.opened import Access
from gateway.app.questions import Questions
from gateway.config.settings import Settings
from gateway.pools.directory import Directory, Endpoint
from gateway.pools.interface import Watch
from gateway.relay.http_upstream import HttpUpstream
from gateway.runtime.background import Background


class Reached:
    """Adds the configured endpoints to a directory. They leave it when the owner of the cores says so.

    Args:
        directory: of the endpoints.
        upstream: is told each endpoint's TLS context.
        settings: those in force.
        background: closes replaced clients.
        watch: finds the watch over an endpoint.
    """

    def __init__(
        self,
        directory: Directory,
        upstream: HttpUpstream,
        *,
        settings: Callable[[], Settings],
        background: Background,
        watch: Callable[[EndpointId], Watch],
    ) -> None:
        self._directory = directory
        self._upstream = upstream
        self._questions = Questions(settings, background)
        self._watch = watch
        self._configured: Mapping[EndpointId, Access] = {}

    def client(self, endpoint: Endpoint) -> httpx.AsyncClient:
        """The client for questions to an endpoint, apart from its requests."""
        return self._questions.client(endpoint.id)

    def follow(self, configured: Mapping[EndpointId, Access]) -> None:
        """Add the endpoints that are new, and reach the others as configured from the next request on."""
        self._configured = configured
        for endpoint, access in configured.items():
            self._reach(endpoint, access)

    def left(self, endpoint: Endpoint) -> None:
        """Forget how to reach an endpoint that is gone, unless it is configured again."""
        self._upstream.forget(endpoint.base_url)
        self._questions.drop(endpoint.id)
        access = self._configured.get(endpoint.id)
        if access is not None:  # it was removed and added again before the owner could say that it is gone
            self._reach(endpoint.id, access)

    async def close(self) -> None:
        """Close every client."""
        await self._questions.close()

    def _reach(self, endpoint: EndpointId, access: Access) -> None:
        known = self._directory.endpoints.get(endpoint)
        if known is None:
            watch = self._watch(endpoint)
            self._directory.add(Endpoint(endpoint, access.base_url, access.api_key, access.model, watch))
        else:
            self._upstream.forget(known.base_url)
            known.base_url, known.api_key = access.base_url, access.api_key
        self._upstream.trust(access.base_url, access.tls)
        self._questions.open(endpoint, access)
