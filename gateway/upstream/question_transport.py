"""httpx on our own connections: for the questions that kvgate itself asks an endpoint.

A client made of httpx and h11 takes some 10 us for each chunk and each interim answer, of which an engine can send
millions. Our connections join what came in one read, and bound what is no body.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator

import httpx

from gateway.config.settings import UpstreamSettings
from gateway.upstream.http_upstream import HttpUpstream
from gateway.upstream.interface import Answer, ConnectFailedError, ConnectionLostError

_OURS = frozenset({b"host", b"content-length"})
"""Headers that the connection writes itself."""
_UNUSED = frozenset({b"set-cookie", b"set-cookie2", b"location"})
"""Headers of an answer that httpx acts on: it keeps every cookie for ever, and raises over a place that is none."""


class QuestionTransport(httpx.AsyncBaseTransport):
    """The transport of the client for one endpoint.

    Of a request's timeouts it keeps `read`: seconds to the head of the answer, and between two pieces. The extension
    `connected` is called once there is a connection to send the request on. One with `Connection: close` has its own.

    Args:
        timeouts: the settings in force; they have the time to connect.
        tls: for an endpoint whose URL is https.
        unix: base URL of an endpoint that has a unix socket. httpx knows none such: it asks at `asked_at`.
    """

    def __init__(
        self, timeouts: Callable[[], UpstreamSettings], tls: ssl.SSLContext | None, unix: str | None = None
    ) -> None:
        self._upstream = HttpUpstream(timeouts)
        self._tls = tls
        self._unix = unix

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        url, extensions = request.url, request.extensions
        origin, path = f"{url.scheme}://{url.netloc.decode('ascii')}", url.raw_path.decode("ascii")
        if self._unix is not None:
            origin = self._unix
        self._upstream.trust(origin, self._tls)
        silence = extensions.get("timeout", {}).get("read")
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _OURS]
        body = await request.aread()
        with _as_httpx():
            async with asyncio.timeout(silence):
                answer = await self._upstream.send(
                    origin,
                    request.method,
                    path,
                    headers,
                    body,
                    alone=request.headers.get("connection") == "close",
                    connected=extensions.get("connected", _nothing),
                )
        kept = [(name, value) for name, value in answer.headers if name not in _UNUSED]
        return httpx.Response(answer.status, headers=kept, stream=_Body(answer, silence))

    async def aclose(self) -> None:
        """Close every idle connection."""
        await self._upstream.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: Answer, silence: float | None) -> None:
        self._answer = answer
        self._silence = silence

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            while True:
                async with asyncio.timeout(self._silence):
                    piece = await self._answer.read_some()
                if not piece:
                    return
                yield piece

    async def aclose(self) -> None:
        self._answer.close()


@contextlib.contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except ConnectFailedError as error:
        cause = error.__context__
        if isinstance(cause, TimeoutError):
            raise httpx.ConnectTimeout(str(error)) from error
        raise httpx.ConnectError(str(cause)) from cause
    except ConnectionLostError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except TimeoutError as error:
        raise httpx.ReadTimeout("no answer in time") from error


def _nothing() -> None:
    pass
