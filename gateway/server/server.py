"""The server of client connections: uvicorn with our own signals and sockets, without middleware."""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import uvicorn

from gateway.admission.outcomes import Outcome
from gateway.config.fields import UNIX
from gateway.config.settings import ServerSettings
from gateway.runtime.descriptors import most_connections
from gateway.server.accepting import Accepting
from gateway.server.http_protocol import STALLED, LimitedProtocol, limited_protocol
from gateway.server.last_call import BACKLOG, HANDSHAKES, SentAway, closing_answer, let_none_begin
from gateway.server.loads import Loads
from gateway.server.unix_listening import UnixListening
from gateway.server.unix_protocol import UnixProtocol

KEEP_ALIVE = 75
"""Seconds an idle client connection is kept: longer than nginx keeps its own towards us (60 s), so that we never close
a connection that nginx is about to use."""
IDLE_GRACE = 6.0
"""Seconds an idle connection is kept once another process takes the new ones. httpx (under the OpenAI and Anthropic
SDKs) and Node's fetch do not reuse a connection idle for 5 s, so a request hardly ever crosses our closing it."""
_CLOSING_TIMEOUT = 2
_FULL = closing_answer(Outcome.GATEWAY_FULL, "Too many clients are connected. Please retry.")
_LOOPBACK = "127.0.0.1"
_REFUSED_LINGER = 1.0
_MOST_LINGERING = 32
_IDLE = 1.0
"""Seconds without a whole head after which a connection gives way to a new one, and between two looks for these."""
_MOST_LOOKED_AT = 10_000
"""Connections that one look takes in: some milliseconds."""


class PortTakenError(Exception):
    """The port, or unix socket, cannot be listened on. The message says where and why.

    Attributes:
        port: its number, or the socket's path.
        option: of `kvgate serve`, that names another.
    """

    def __init__(self, message: str, port: int | Path, option: str = "--port") -> None:
        super().__init__(message)
        self.port = port
        self.option = option


class _Server(uvicorn.Server):
    """uvicorn's server, with an acceptance of our own.

    Args:
        accepting: makes the acceptance from a socket, of a protocol's factory and the count of connections.
    """

    servers: list[Accepting]  # type: ignore[assignment]  # as much of a server as uvicorn uses

    def __init__(
        self,
        config: uvicorn.Config,
        accepting: Callable[[socket.socket, Callable[[], asyncio.Protocol], Callable[[], int]], Accepting],
    ) -> None:
        super().__init__(config)
        self._accepting = accepting
        self.servers = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Keep uvicorn from taking the signals: a gateway drains before it stops."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""

        def make() -> asyncio.Protocol:
            protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return protocol

        def connections() -> int:
            return len(self.server_state.connections)

        await self.lifespan.startup()
        self.servers = [self._accepting(listening, make, connections) for listening in sockets or []]
        self.started = True


class _Refused(SentAway):
    """A connection above the limit: it is told so once it asks, and closed."""

    lingering: ClassVar[dict["_Refused", None]] = {}
    """Refused connections kept open for a moment, so that their clients can ask and read the answer. The longest open
    gives way to one too many: who means to ask does so at once."""

    def __init__(self, transport: Any) -> None:
        super().__init__(_FULL)
        transport.set_protocol(self)
        self.connection_made(transport)
        if len(self.lingering) >= _MOST_LINGERING:
            next(iter(self.lingering)).abort()
        self.lingering[self] = None
        # Closing with unread bytes would reset the connection and lose the answer.
        self._timer = asyncio.get_running_loop().call_later(_REFUSED_LINGER, transport.abort)

    def abort(self) -> None:
        """Close it unanswered."""
        del self.lingering[self]
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self.lingering.pop(self, None)
        self._timer.cancel()


class _Idle:
    """The connections that can give way to new ones when all places are taken: idle, or slow to send a head.

    Of the address with the most connections first, and of those the longest idle.
    """

    def __init__(self) -> None:
        self._found: list[LimitedProtocol] = []
        self._next_look = 0.0

    def make_room(self, connections: Iterable[LimitedProtocol], now: float) -> bool:
        """Close one of these; False if there is none."""
        if now >= self._next_look:
            self._next_look = now + _IDLE
            seen = list(islice(connections, _MOST_LOOKED_AT))
            held = Counter(one.address for one in seen)
            idle = [(held[one.address], one.idle_for() or 0.0, one) for one in seen]
            self._found = [one for _, seconds, one in sorted(idle, key=itemgetter(0, 1)) if seconds >= _IDLE]
        while self._found:
            if self._found.pop().give_way(_IDLE):
                return True
        return False


def _bounded(
    protocol: type[LimitedProtocol], most: Callable[[], int], on_refused: Callable[[], None]
) -> type[LimitedProtocol]:
    """The protocol, limited to this many connections at once."""
    idle = _Idle()

    class Bounded(protocol):  # type: ignore[valid-type, misc]  # a class is what uvicorn takes
        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= most() and not idle.make_room(self.connections, self.loop.time()):
                _Refused(transport)
                on_refused()
            else:
                super().connection_made(transport)

    return Bounded


class Listener:
    """One listening port, or unix socket, with an ASGI application behind it.

    Args:
        app: the application.
        listening: a bound socket.
        settings: limits of what a client may send.
        most: connections at once; None takes the settings' limit.
        on_refused: called for each connection above the limit that no idle one gave way to.
        loads: of the fronts that serve the same socket; None where this process serves it alone.
        shared: whether another process has the socket, too, and closes the port.
        tls: for connections from now on; None for plain HTTP.
    """

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        settings: ServerSettings,
        *,
        most: int | None = None,
        on_refused: Callable[[], None] = lambda: None,
        loads: Loads | None = None,
        shared: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = listening
        self._tls = tls
        self._shared = shared
        protocol = UnixProtocol if listening.family == socket.AF_UNIX else LimitedProtocol
        limited = limited_protocol(protocol, settings.max_header_bytes, settings.body_timeout)
        self._given_most = most
        self._most = _most(settings, most)
        self._protocol = _bounded(limited, lambda: self._most, on_refused)
        config = uvicorn.Config(
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

        def accepting(
            listening: socket.socket, make: Callable[[], asyncio.Protocol], connections: Callable[[], int]
        ) -> Accepting:
            return Accepting(
                listening,
                make,
                connections=connections,
                loads=loads,
                tls=lambda: self._tls,
                most=lambda: self._most,
                on_refused=on_refused,
            )

        self._server = _Server(config, accepting)
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on; 0 for a unix socket."""
        return port_of(self._socket)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    @property
    def beginning(self) -> int:
        """How many were accepted and shake hands."""
        return sum(server.beginning for server in self._server.servers)

    def govern(self, settings: ServerSettings, tls: ssl.SSLContext | None) -> None:
        """Apply these limits on connections and sizes from now on, and this TLS to connections that come."""
        self._tls = tls
        self._protocol.max_header_bytes = settings.max_header_bytes
        self._protocol.head_timeout = settings.body_timeout
        self._most = _most(settings, self._given_most)

    def start(self) -> None:
        """Accept connections from now on."""
        self._socket.listen(BACKLOG)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    def retire(self) -> None:
        """Leave new connections to another process, and let the open ones run to their end.

        A request on an open one is served, and its answer says that it is the last. An idle one is closed after
        `IDLE_GRACE`.
        """
        self._shared = True
        for server in self._server.servers:
            server.close()
        self._protocol.idle_grace = IDLE_GRACE
        for connection in list(self._server.server_state.connections):
            assert isinstance(connection, LimitedProtocol)  # noqa: S101  # what was configured
            connection.retire()

    async def stop(self) -> None:
        """Close the port and its remaining connections. No request that still comes is lost: see `last_call`."""
        if self._task is not None:
            if not self._shared:
                let_none_begin(self._socket)
                await asyncio.sleep(HANDSHAKES)
            self._protocol.ending = True
            self._server.should_exit = True
            await self._task
            for server in self._server.servers:
                server.abort()
        if isinstance(self._socket, UnixListening):
            self._socket.remove()


def _most(settings: ServerSettings, given: int | None) -> int:
    return given or settings.max_connections or most_connections()


def bind_all(settings: ServerSettings) -> list[socket.socket]:
    """The sockets of a gateway: for clients and, if they have a port of their own, for the admin routes.

    Raises:
        PortTakenError: a port is not free.
    """
    unix = settings.unix
    host = settings.host if unix is None else _LOOPBACK
    bound: list[socket.socket] = []
    try:
        bound.append(bind(host, settings.port) if unix is None else bind_unix(unix, settings.socket_mode))
        if settings.admin_port is not None:
            bound.append(bind(host, settings.admin_port))
    except PortTakenError:
        close_all(bound)
        raise
    return bound


def close_all(bound: Iterable[socket.socket]) -> None:
    """Close sockets that this process bound, and remove the files of unix sockets."""
    for listening in bound:
        if isinstance(listening, UnixListening):
            listening.remove()
        listening.close()


def port_of(listening: socket.socket) -> int:
    """Its port; 0 for a unix socket."""
    return 0 if listening.family == socket.AF_UNIX else int(listening.getsockname()[1])


def bind_unix(path: Path, mode: str) -> socket.socket:
    """A unix socket for a `Listener`, with this mode, in octal digits.

    Raises:
        PortTakenError: somebody listens there, or it cannot be made.
    """
    try:
        return UnixListening(path, int(mode, 8))
    except OSError as error:
        raise PortTakenError(f"cannot listen on {UNIX}{path}: {error.strerror}", path, "--host") from None


def bind(host: str, port: int) -> socket.socket:
    """A socket for a `Listener`, on a free port; 0 takes any.

    Raises:
        PortTakenError: the port is not free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Each accepted connection inherits this.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED * 1000))
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}", port) from None
    listening.set_inheritable(False)
    return listening
