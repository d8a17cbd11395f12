"""The upstream client: a pool of `Connection`s for each endpoint, without a limit of its own."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from gateway.config.settings import UpstreamSettings
from gateway.runtime.descriptors import OutOfDescriptorsError, lacking
from gateway.upstream.connection import Connection
from gateway.upstream.interface import (
    Answer,
    ConnectFailedError,
    ConnectionLostError,
    Headers,
)
from gateway.upstream.name_lookup import NameLookup
from gateway.upstream.unix_connection import connect

_HEAD_START = 0.25
"""Seconds that an address of a name has for itself until the next one is tried beside it (RFC 8305)."""
_P = TypeVar("_P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The origin of an endpoint: its address, `Host` value, path prefix and TLS.

    Attributes:
        unix: path of its socket, where it has no host and port.
    """

    host: str
    port: int
    authority: bytes
    prefix: str
    tls: ssl.SSLContext | None
    unix: str | None = None


class HttpUpstream:
    """Implements `Upstream` on plain asyncio and httptools, with nothing between the socket's callback and the relay.

    Args:
        timeouts: the settings in force.
    """

    def __init__(self, timeouts: Callable[[], UpstreamSettings]) -> None:
        self._timeouts = timeouts
        self._tls: dict[str, ssl.SSLContext | None] = {}
        self._origins: dict[str, _Origin] = {}
        self._idle: dict[str, dict[Connection, float]] = {}
        """By endpoint: its idle connections and since when each is idle, the longest idle first."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._names = NameLookup()

    async def send(
        self,
        base_url: str,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        alone: bool = False,
        sending: Callable[[], None] = lambda: None,
        connected: Callable[[], None] = lambda: None,
        repeatable: bool = False,
    ) -> Answer:
        """See `Upstream.send`. Calls `connected` once the endpoint's kernel has taken a connection.

        `repeatable`: it goes out again whatever the endpoint saw of it, if a pooled connection is lost.
        """
        origin = self._origins.get(base_url) or self._locate(base_url)
        lines = [
            b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (method.encode(), (origin.prefix + path).encode(), origin.authority)
        ]
        lines += [b"%s: %s\r\n" % header for header in headers]
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        head = b"".join(lines)

        connection = None if alone else self._reused(base_url)
        if connection is not None:
            connected()
            sending()
            try:
                await connection.request(head, body)
            except ConnectionLostError:
                if not (connection.untouched or repeatable):
                    raise
                # The engine closed an idle connection just as it was used. It has seen nothing, or may see it again.
                connection = None
        if connection is None:
            connection = await self._connect(origin, connected)
            sending()
            await connection.request(head, body)
        return _HttpAnswer(self, base_url, connection)

    def trust(self, base_url: str, context: ssl.SSLContext | None) -> None:
        """Use this TLS context for connections to this URL from now on. A URL without one uses the system's."""
        if self._tls.get(base_url) is not context:
            self._origins.pop(base_url, None)
        self._tls[base_url] = context

    def forget(self, base_url: str) -> None:
        """Close a URL's idle connections. Answers under way run to their end."""
        self._tls.pop(base_url, None)
        if (origin := self._origins.pop(base_url, None)) is not None:
            self._names.forget(origin.host)
        for connection in self._idle.pop(base_url, ()):
            connection.abort()

    async def close(self) -> None:
        """Close every idle connection. Whoever uses one closes it."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def release(self, base_url: str, connection: Connection) -> None:
        """Keep a connection whose answer is complete; close any other."""
        if not connection.reusable:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(base_url, {})
        if base_url not in self._timers:
            self._timers[base_url] = loop.call_later(self._timeouts().keepalive, self._expire, base_url)
        idle[connection] = loop.time()

    def _reused(self, base_url: str) -> Connection | None:
        """The most recently used idle connection that is still good."""
        idle = self._idle.get(base_url)
        now = asyncio.get_running_loop().time()
        while idle:
            connection, since = idle.popitem()
            if connection.open and now - since < self._timeouts().keepalive:
                return connection
            connection.abort()
        return None

    def _expire(self, base_url: str) -> None:
        """Close what was idle too long; call again when the next connection's time is up."""
        idle = self._idle.get(base_url)
        loop = asyncio.get_running_loop()
        now = loop.time()
        del self._timers[base_url]
        while idle:
            connection, since = next(iter(idle.items()))
            if connection.open and now - since < self._timeouts().keepalive:
                self._timers[base_url] = loop.call_at(since + self._timeouts().keepalive, self._expire, base_url)
                return
            del idle[connection]
            connection.abort()

    async def _connect(self, origin: _Origin, connected: Callable[[], None]) -> Connection:
        patience, lacks = self._timeouts().connect_timeout, "connection"
        connection: Connection
        try:
            async with asyncio.timeout(patience):
                if origin.unix is not None:
                    connection = await connect(origin.unix)
                    connected()
                else:
                    lacks = "name resolution"
                    addresses = await self._names.addresses(origin.host)
                    lacks = "connection"
                    if origin.tls is None:
                        _, connection = await _opened(Connection, addresses, origin.port)
                        connected()
                    else:
                        plain, _ = await _opened(asyncio.Protocol, addresses, origin.port)
                        connected()  # the handshake is for the endpoint itself to make, and that may be busy
                        connection = await _secured(plain, origin.tls, origin.host)
        except OSError as error:
            if lacking(error):
                raise OutOfDescriptorsError from error
            self._names.forget(origin.host)  # another machine may have the address by now
            if isinstance(error, TimeoutError):
                why = f"no {lacks} within {patience:g} s"
            elif isinstance(error, ssl.SSLCertVerificationError):
                why = f"its TLS certificate was not accepted: {error.verify_message}"
            else:
                why = f"connection refused ({error.strerror or type(error).__name__})"
            raise ConnectFailedError(why) from None
        return connection

    def _locate(self, base_url: str) -> _Origin:
        url = urlsplit(base_url)
        if url.scheme == "unix":
            origin = self._origins[base_url] = _Origin("", 0, b"localhost", "", None, url.path)
            return origin
        secure = url.scheme == "https"
        tls = self._tls.get(base_url) or ssl.create_default_context() if secure else None
        origin = _Origin(
            host=url.hostname or "",
            port=url.port or (443 if secure else 80),
            authority=url.netloc.rpartition("@")[2].encode("idna" if not url.netloc.isascii() else "ascii"),
            prefix=url.path.rstrip("/"),
            tls=tls,
        )
        self._origins[base_url] = origin
        return origin


async def _opened(protocol: Callable[[], _P], addresses: Sequence[str], port: int) -> tuple[asyncio.Transport, _P]:
    """A connection to the first of the addresses that takes one."""
    loop = asyncio.get_running_loop()
    if len(addresses) == 1:
        return await loop.create_connection(protocol, addresses[0], port)
    left, failed = list(addresses), list[BaseException]()
    trying: set[asyncio.Task[tuple[asyncio.Transport, _P]]] = set()
    try:
        while left or trying:
            if left:
                trying.add(asyncio.ensure_future(loop.create_connection(protocol, left.pop(0), port)))
            done, _ = await asyncio.wait(
                trying, timeout=_HEAD_START if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                trying.remove(task)
                if (error := task.exception()) is None:
                    return task.result()
                failed.append(error)
    finally:
        for task in trying:
            task.add_done_callback(_drop)
            task.cancel()
    raise OSError(f"Multiple exceptions: {', '.join(map(str, failed))}")


def _drop(task: asyncio.Task[tuple[asyncio.Transport, _P]]) -> None:
    """Close a connection that nobody needs any more, if it was made."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()


async def _secured(plain: asyncio.Transport, tls: ssl.SSLContext, host: str) -> Connection:
    connection = Connection()
    try:
        secured = await asyncio.get_running_loop().start_tls(plain, connection, tls, server_hostname=host)
    except BaseException:
        plain.abort()
        raise
    if secured is None:  # closed meanwhile
        raise ConnectionResetError
    connection.connection_made(secured)
    return connection


class _HttpAnswer:
    def __init__(self, pool: HttpUpstream, base_url: str, connection: Connection) -> None:
        self._pool = pool
        self._base_url = base_url
        self._connection: Connection | None = connection
        self.status = connection.status
        self.headers: Headers = connection.headers
        connection.headers = []
        self.read_some = connection.read
        self.deliver = connection.deliver

    def close(self) -> None:
        """See `Answer.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(self._base_url, connection)
