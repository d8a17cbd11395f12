"""uvicorn, run the way a gateway needs it: our own signals, our own sockets, no middleware."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from gateway.admission.outcomes import Outcome
from gateway.config import ServerSettings
from gateway.descriptors import most_connections
from gateway.relay.http_protocol import LimitedProtocol, limited_protocol
from gateway.wire.errors import openai_error

KEEP_ALIVE = 75
"""Seconds an idle client connection is kept: longer than nginx keeps its own towards us (60 s), so that it is never
us who close a connection that nginx is just about to use."""
IDLE_GRACE = 6.0
"""Seconds an idle connection is kept once others take the new ones. httpx, which is under the OpenAI and Anthropic
SDKs, and Node's fetch use none that has idled for 5 s, so that hardly a request can cross our closing it."""
_CLOSING_TIMEOUT = 2
_RETRY_AFTER = 1
"""Seconds, for clients that find no room to connect."""
_REFUSED_LINGER = 1.0
_MOST_LINGERING = 32
STALLED = 60.0
"""Seconds for which a client may take nothing of what waits for it, before the kernel ends its connection: in whatever
phase, and after we have closed our side of it, too. As nginx's `send_timeout`."""
BACKLOG = 4096
"""Connections that may wait to be accepted: a thousand clients may come at once."""


class PortTakenError(Exception):
    """Nothing can listen there. The message says where and why.

    Attributes:
        port: which.
    """

    def __init__(self, message: str, port: int) -> None:
        super().__init__(message)
        self.port = port


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: a gateway drains before it stops."""
        yield


class _Refused(asyncio.Protocol):
    """A connection beyond the most there may be: it was told so, and ends."""

    lingering = 0
    """How many of them are not closed yet, so that their clients can read the answer."""

    def __init__(self, transport: Any) -> None:
        body = openai_error("Too many clients are connected. Please retry.", "server_error", Outcome.GATEWAY_FULL.value)
        transport.set_protocol(self)
        transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"retry-after: %d\r\nx-kvgate-reason: %b\r\nconnection: close\r\n\r\n%b"
            % (len(body), _RETRY_AFTER, Outcome.GATEWAY_FULL.value.encode(), body)
        )
        # Closing on bytes that were not read would reset the connection, and the answer would be lost.
        linger = _REFUSED_LINGER if _Refused.lingering < _MOST_LINGERING else 0.0
        _Refused.lingering += 1
        transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(linger, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        _Refused.lingering -= 1
        self._timer.cancel()


def _bounded(
    protocol: type[LimitedProtocol], most: Callable[[], int], on_refused: Callable[[], None]
) -> type[LimitedProtocol]:
    """The protocol, for no more than so many connections at once."""

    class Bounded(protocol):  # type: ignore[valid-type, misc]  # a class is what uvicorn takes
        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= most():
                _Refused(transport)
                on_refused()
            else:
                super().connection_made(transport)

    return Bounded


class Listener:
    """One listening port with an ASGI application behind it.

    Args:
        app: the application.
        listening: a socket that is bound; other processes may accept connections from it too.
        settings: what a client may send.
        most: connections at once; None: as the settings say.
        on_refused: told of each beyond that.
    """

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        settings: ServerSettings,
        *,
        most: int | None = None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = listening
        limited = limited_protocol(settings.max_header_bytes, settings.body_timeout)
        self._given_most = most
        self._most = _most(settings, most)
        self._protocol = _bounded(limited, lambda: self._most, on_refused)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=_CLOSING_TIMEOUT,
                backlog=BACKLOG,
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    def limit(self, settings: ServerSettings) -> None:
        """Let so many clients connect, and each send so much, from now on."""
        self._protocol.max_header_bytes = settings.max_header_bytes
        self._protocol.head_timeout = settings.body_timeout
        self._most = _most(settings, self._given_most)

    def start(self) -> None:
        """Accept connections from now on."""
        self._socket.listen(BACKLOG)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    def retire(self) -> None:
        """Accept no more connections, which wait for another process, and let those that are open come to their ends.

        A request that comes on one is served, and its answer says that it is the last. An idle one is closed after
        `IDLE_GRACE`.
        """
        for server in self._server.servers:
            server.close()
        self._protocol.idle_grace = IDLE_GRACE
        for connection in list(self._server.server_state.connections):
            assert isinstance(connection, LimitedProtocol)  # noqa: S101  # what was configured
            connection.retire()

    async def stop(self) -> None:
        """Close the port and what is left of its connections."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task


def _most(settings: ServerSettings, given: int | None) -> int:
    return given or settings.max_connections or most_connections()


def bind_all(settings: ServerSettings) -> list[socket.socket]:
    """The sockets of a gateway: for clients and, where it has a port of its own, for the admin routes.

    Raises:
        PortTakenError: a port is not free.
    """
    ports = (settings.port,) if settings.admin_port is None else (settings.port, settings.admin_port)
    bound: list[socket.socket] = []
    try:
        for port in ports:
            bound.append(bind(settings.host, port))  # noqa: PERF401  # those before one that fails are closed
    except PortTakenError:
        for listening in bound:
            listening.close()
        raise
    return bound


def bind(host: str, port: int) -> socket.socket:
    """A socket for a `Listener`, of a port that is free; 0 takes any.

    Raises:
        PortTakenError: it is not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Each connection inherits it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED * 1000))
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}", port) from None
    listening.set_inheritable(False)
    return listening
