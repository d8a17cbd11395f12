"""The end of a port: whoever still comes is answered, and asks another gateway.

A connection that waits to be accepted when its port closes is reset, and an idle one may carry a request at that very
moment. A proxy must not send either request again, as it cannot know that nobody took it up. So both get an answer that
says so (503; nginx: `proxy_next_upstream http_503`), and the connection ends after it.
"""

import asyncio
import contextlib
import ctypes
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import cast

from gateway.admission.outcomes import Outcome
from gateway.server.accepting import Accepting
from gateway.server.unix_listening import UnixListening
from gateway.wire.errors import SHUTTING_DOWN, error_answer, reasons

BACKLOG = 4096
"""Connections that may wait to be accepted: a thousand clients may connect at once."""
_RETRY_AFTER = 1.0
"""Seconds, for who has no other gateway to ask."""
HANDSHAKES = 0.05
"""Seconds that connections which have begun get to be there: longer than a packet takes to a proxy and back."""
LINGER = 0.5
"""Seconds for which a request that has crossed the answer is still read, and dropped: on unread bytes the kernel would
reset the connection, and the answer could be lost."""
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which `socket` does not name."""
_FILTER = b"".join(
    struct.pack("HBBI", *step)
    for step in (
        (0x30, 0, 0, 13),  # load the flags of the TCP header
        (0x54, 0, 0, 0x12),  # keep SYN and ACK
        (0x15, 0, 1, 0x02),  # SYN alone?
        (0x06, 0, 0, 0),  # then drop it
        (0x06, 0, 0, 0xFFFFFFFF),
    )
)


def closing_answer(outcome: Outcome, message: str) -> bytes:
    """A whole answer that sends a client away for a moment and ends its connection."""
    answer = error_answer(outcome, message, retry_after=_RETRY_AFTER)
    headers = (*answer.headers, *reasons(outcome), (b"connection", b"close"))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 %d Service Unavailable\r\n%b\r\n%b" % (answer.status, lines, answer.body)


LAST_WORD = closing_answer(Outcome.DRAINING, SHUTTING_DOWN)
"""To a connection that was used. Who had just sent a request takes it for the answer, and who had not, closes."""


def let_none_begin(listening: socket.socket) -> None:
    """Ignore who asks for a new connection, while those that have begun come in: nobody is between two when it closes.

    Who is ignored tries again, and is refused then. The filter stays for as long as the socket is open anywhere. A unix
    socket is not found any more.
    """
    if isinstance(listening, UnixListening):
        listening.remove()
    if listening.family == socket.AF_UNIX:
        return
    steps = ctypes.create_string_buffer(_FILTER, len(_FILTER))
    program = struct.pack("HP", len(_FILTER) // 8, ctypes.addressof(steps))
    with contextlib.suppress(OSError):  # without it, some microseconds are left in which a connection is lost
        listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


async def last_call(ports: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
    """Answer the connections that nobody has accepted, and close the ports.

    Args:
        ports: listening sockets, from which no process accepts any more.
        tls: of their clients, if any.
    """
    loop, told = asyncio.get_running_loop(), set[asyncio.BaseTransport]()
    for listening in ports:
        let_none_begin(listening)
        listening.listen(BACKLOG)  # it may be that nobody did
    servers = [
        Accepting(port, lambda: _Told(told), connections=lambda: len(told), tls=lambda: tls, most=lambda: BACKLOG)
        for port in ports
    ]
    await asyncio.sleep(HANDSHAKES)
    for server, port in zip(servers, ports, strict=True):
        server.close()
        port.close()
    deadline = loop.time() + LINGER
    while (told or any(server.beginning for server in servers)) and loop.time() < deadline:  # noqa: ASYNC110  # they tell nobody
        await asyncio.sleep(HANDSHAKES)
    for server in servers:
        server.abort()


class SentAway(asyncio.Protocol):
    """A connection that gets one answer whatever it says; asyncio closes it when its client does.

    It is not answered before: nginx mixes up an answer that comes before it has asked.
    """

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for what it says."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has the methods, not the class

    def data_received(self, data: bytes) -> None:  # noqa: ARG002  # asyncio's signature
        """Answer it, the first time."""
        if self._answer:
            self._transport.write(self._answer)
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:  # of TLS there is no half an end
                self._transport.close()
            self._answer = b""


class _Told(SentAway):
    """A connection that came at the very end."""

    def __init__(self, told: set[asyncio.BaseTransport]) -> None:
        super().__init__(LAST_WORD)
        self._told = told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._told.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._told.discard(self._transport)
