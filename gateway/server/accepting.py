"""The acceptance of connections from a listening socket, and of those with TLS their handshakes."""

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from gateway.runtime.descriptors import lacking
from gateway.server.loads import Loads

_PAUSE = 0.1
"""Seconds without accepting after the process ran out of descriptors."""
_DEFERENCE = 0.001
"""Seconds for which a new connection is left to a front with fewer."""
_AT_ONCE = 64
"""Most connections accepted in one turn of the event loop by a process that has the socket for itself."""
HANDSHAKE = 10.0
"""Seconds that a TLS handshake may take."""
_FAREWELL = 30.0
"""Seconds that the end of a connection with TLS may take, with what is left to send: as long as `body_timeout`."""
_SPARE = 32
"""Connections above the limit that may shake hands, to be told that all places are taken."""
_REMINDER = 60.0
"""Seconds between two lines about handshakes that failed."""
_log = structlog.get_logger("kvgate.tls")


class Accepting:
    """Accepts connections. One with TLS goes to its protocol when its handshake is done.

    Where several fronts share the socket, it accepts one in each turn of the event loop, and leaves it to a front with
    fewer if there is one: the first process to wake would have every client of a burst.

    A connection that shakes hands takes one of the places of all. Where there is none left, the one that has been at it
    for longest gives way: who means to speak is done in milliseconds.

    Args:
        listening: the socket.
        make: makes the protocol of a connection.
        connections: how many there are, handshakes aside.
        loads: of all fronts; None where no other shares the socket.
        tls: the context for the next connection; None for one without TLS.
        most: places for connections.
        on_refused: called for each handshake that gave way.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        connections: Callable[[], int],
        loads: Loads | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        most: Callable[[], int] = lambda: 0,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = listening
        self._make = make
        self._connections = connections
        self._loads = loads
        self._tls = tls
        self._most = most
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._beginning: dict[asyncio.Task[None], None] = {}
        """What was accepted and is no connection yet, the first one first."""
        self._resume: asyncio.TimerHandle | None = None
        self._failures = _Failures()
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._offered)

    @property
    def beginning(self) -> int:
        """How many were accepted and are no connections yet."""
        return len(self._beginning)

    def is_serving(self) -> bool:
        """Whether it accepts."""
        return not self._closed

    def close(self) -> None:
        """Accept no more. Handshakes go on."""
        self._closed = True
        self._loop.remove_reader(self._socket)
        if self._resume is not None:
            self._resume.cancel()
        if self._loads is not None:
            self._loads.leave()

    def abort(self) -> None:
        """Break off the handshakes."""
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """As a server of asyncio's; what was accepted goes on."""

    def _offered(self) -> None:
        if self._loads is None:
            for _ in range(_AT_ONCE):
                if not self._accept():
                    return
            return
        here = self._connections() + len(self._beginning)
        self._loads.note(here)
        if self._loads.fewer_elsewhere(here):
            self._wait(_DEFERENCE, self._deferred)
        else:
            self._accept()

    def _deferred(self) -> None:
        self._loop.add_reader(self._socket, self._offered)
        self._accept()

    def _accept(self) -> bool:
        """Accept a connection; False if there is none."""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another front was first
            return False
        except OSError as error:
            if not lacking(error):
                raise
            self._wait(_PAUSE, lambda: self._loop.add_reader(self._socket, self._offered))
            return False
        connection.setblocking(False)
        context = self._tls()
        if context is not None:
            self._make_room()
        task = self._loop.create_task(self._begin(connection, context))
        self._beginning[task] = None
        task.add_done_callback(lambda task: self._beginning.pop(task, None))
        return True

    def _make_room(self) -> None:
        if self._beginning and len(self._beginning) + self._connections() >= self._most() + _SPARE:
            longest = next(iter(self._beginning))
            del self._beginning[longest]
            longest.cancel()
            self._on_refused()

    async def _begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(self._make, connection)
            else:
                await self._loop.connect_accepted_socket(
                    self._make,
                    connection,
                    ssl=tls,
                    ssl_handshake_timeout=HANDSHAKE,
                    ssl_shutdown_timeout=_FAREWELL,
                )
        except OSError as error:  # as those of ssl are, and what comes too late
            if tls is not None:
                self._failures.note(error, self._loop.time())

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(seconds, then)


class _Failures:
    """The handshakes that failed, told of from time to time: a client may try a thousand times a second."""

    def __init__(self) -> None:
        self._count = 0
        self._next = float("-inf")

    def note(self, error: OSError, now: float) -> None:
        self._count += 1
        if now >= self._next:
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error) or _LEFT
            _log.info("a TLS handshake failed", reason=_WORDS.get(reason, reason), since_last_told=self._count)
            self._count, self._next = 0, now + _REMINDER


_LEFT = "the client broke it off, as who does not trust the certificate does"
_WORDS = {
    "HTTP_REQUEST": "the client speaks plain HTTP: its URL must begin with https://",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust this certificate's CA",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the certificate",
}
"""What clients do wrong most often, by OpenSSL's names."""
