"""The clients for questions to the endpoints, apart from requests: probes, and counts."""

import asyncio
import functools
from collections.abc import Callable

import httpx

from gateway.admission.events import EndpointId
from gateway.app.named_files import Access
from gateway.config.settings import Settings
from gateway.runtime.background import Background
from gateway.upstream.question_transport import QuestionTransport


class Questions:
    """One client for each endpoint.

    Args:
        settings: those in force.
        background: closes replaced clients.
    """

    def __init__(self, settings: Callable[[], Settings], background: Background) -> None:
        self._settings = settings
        self._background = background
        self._clients: dict[EndpointId, httpx.AsyncClient] = {}
        self._base_urls: dict[EndpointId, str] = {}

    def open(self, endpoint: EndpointId, access: Access) -> httpx.AsyncClient:
        """Make an endpoint's client, in place of the one it has."""
        self.drop(endpoint)
        headers = {"authorization": f"Bearer {access.api_key}"} if access.api_key is not None else {}
        unix = access.base_url if access.settings.unix is not None else None
        transport = QuestionTransport(lambda: self._settings().upstream, access.tls, unix)
        client = httpx.AsyncClient(transport=transport, headers=headers, trust_env=False)
        self._clients[endpoint], self._base_urls[endpoint] = client, access.base_url
        return client

    def client(self, endpoint: EndpointId) -> httpx.AsyncClient:
        """The client of an endpoint."""
        return self._clients[endpoint]

    def base_url(self, endpoint: EndpointId) -> str:
        """The base URL of an endpoint, without a trailing slash."""
        return self._base_urls[endpoint]

    def drop(self, endpoint: EndpointId) -> None:
        """Close an endpoint's client, if it has one, once its open questions have been answered."""
        client = self._clients.pop(endpoint, None)
        if client is not None:
            self._background.spawn("closing", functools.partial(self._close_later, client))

    async def close(self) -> None:
        """Close every client at once."""
        for client in self._clients.values():
            await client.aclose()

    async def _close_later(self, client: httpx.AsyncClient) -> None:
        try:
            await asyncio.sleep(2 * self._settings().health.timeout)
        finally:
            await client.aclose()
