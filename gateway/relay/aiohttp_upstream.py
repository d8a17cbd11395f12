"""The upstream client on aiohttp."""

import io
import ssl
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from gateway.relay.upstream import Answer, ConnectFailedError, ConnectionLostError, Headers

_DIRECT_BODY_BYTES = 512 * 2**10
"""A larger body is written in pieces, so that one write does not hold the event loop."""
_READ_BUFFER_BYTES = 32 * 2**10
"""Twice this is the most that one stream holds for a slow reader."""
_KEPT_URLS = 1024
"""Parsing one costs more than keeping it, but paths with ids and queries are without number."""
_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add to the client's own."""


class _AiohttpAnswer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._read = response.content.readany
        self.status = response.status
        self.headers: Headers = response.raw_headers

    async def read_some(self) -> bytes:
        try:
            return await self._read()
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLostError(_described(error)) from error

    def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class AiohttpUpstream:
    """A pool of connections without a limit of its own: the admission core is the only one.

    Args:
        connect_timeout: seconds to open a connection.
        keepalive: seconds an idle connection is kept.
        tls: contexts by base URL, for endpoints with settings of their own.
    """

    def __init__(self, connect_timeout: float, keepalive: float, tls: dict[str, ssl.SSLContext] | None = None) -> None:
        self._tls = dict(tls or {})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)
        traces = aiohttp.TraceConfig()
        traces.on_connection_reuseconn.append(_mark_reused)

        def session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                trace_configs=[traces],
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_SKIPPED,
                read_bufsize=_READ_BUFFER_BYTES,
            )

        self._pooled = session(aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive))
        self._fresh = session(aiohttp.TCPConnector(limit=0, force_close=True))
        self._urls: dict[tuple[str, str], URL] = {}

    async def send(self, base_url: str, method: str, path: str, headers: Headers, body: bytes) -> Answer:
        """See `Upstream.send`."""
        used = SimpleNamespace(reused=False)
        options: dict[str, Any] = {
            "method": method,
            "url": self._url(base_url, path),
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
            "allow_redirects": False,
            "ssl": self._tls.get(base_url, True),
            "trace_request_ctx": used,
        }
        try:
            return await _request(self._pooled, options, body)
        except (aiohttp.ClientError, OSError) as error:
            # A reset is aiohttp's own `ClientOSError`, an end without an answer its `ServerDisconnectedError`.
            lost = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
            if not (lost and used.reused) or isinstance(error, aiohttp.ClientConnectorError):
                raise _failure(error) from error
        # The engine closed an idle connection just as it was used: nothing of an answer was seen.
        try:
            return await _request(self._fresh, options, body)
        except (aiohttp.ClientError, OSError) as error:
            # Never `ConnectFailedError`: the endpoint may have seen the request, and died of it.
            raise ConnectionLostError(_described(error)) from error

    def _url(self, base_url: str, path: str) -> URL:
        key = (base_url, path)
        url = self._urls.get(key)
        if url is None:
            url = URL(base_url + path, encoded=True)
            if len(self._urls) < _KEPT_URLS:
                self._urls[key] = url
        return url

    async def close(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()


async def _request(session: aiohttp.ClientSession, options: dict[str, Any], body: bytes) -> _AiohttpAnswer:
    data = io.BytesIO(body) if len(body) > _DIRECT_BODY_BYTES else body or None
    return _AiohttpAnswer(await session.request(data=data, **options))


async def _mark_reused(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.reused = True


def _failure(error: Exception) -> ConnectFailedError | ConnectionLostError:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return ConnectFailedError(_described(error))
    return ConnectionLostError(_described(error))


def _described(error: Exception) -> str:
    """A sentence without the URL or any content."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate was not accepted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"connection refused ({error.os_error.strerror or type(error.os_error).__name__})"
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionError)):
        return "the connection was closed before the answer ended"
    return f"the connection failed ({type(error).__name__})"
