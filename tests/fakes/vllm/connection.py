"""HTTP/1.1 on a raw protocol: what the fake costs must not show beside what is measured with it."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

LINGER_ZERO = struct.pack("ii", 1, 0)
STREAM_TYPE = "text/event-stream; charset=utf-8"


@dataclass(slots=True)
class SeenRequest:
    """A request as it came, and what became of it. Times are of `time.monotonic()`: uvloop's own is in milliseconds."""

    connection: int
    """Which connection it came on, numbered from 0."""
    arrived: float
    method: str = ""
    path: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    """Names in lower case, in the order they came."""
    body: bytes = b""
    begun: float | None = None
    """When the first event of its answer was handed to the socket."""
    answered: bool = False
    """The whole answer was handed to the socket."""
    client_gone_at: float | None = None
    """When the client closed the connection before that."""
    paused: bool = False
    """The client read so slowly that the socket's buffer filled."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Answering(Protocol):
    """What a connection tells the answer in progress."""

    def client_gone(self) -> None: ...


class Phases:
    """Spreads the events of a step over its time: each connection has its phase, as if it had an engine of its own.

    Args:
        number: of phases.
        seconds: between two of them.
    """

    def __init__(self, number: int, seconds: float) -> None:
        self._seconds = seconds
        self._late: list[list[tuple[asyncio.Transport, bytes]]] = [[] for _ in range(number)]

    def write(self, connection: "Connection", data: bytes) -> None:
        """Write when it is the connection's turn."""
        phase = connection.number % len(self._late)
        late = self._late[phase]
        if not late:
            asyncio.get_running_loop().call_later(phase * self._seconds, self._flush, late)
        late.append((connection.transport, data))

    @staticmethod
    def _flush(late: list[tuple[asyncio.Transport, bytes]]) -> None:
        for transport, data in late:
            if not transport.is_closing():
                transport.write(data)
        late.clear()


class Connection(asyncio.Protocol):
    """One client connection; hands complete requests to `on_request` and writes what comes back."""

    transport: asyncio.Transport

    def __init__(
        self,
        number: int,
        on_request: Callable[["Connection", SeenRequest], None],
        keep_alive: float,
        peers: set["Connection"],
        phases: Phases | None = None,
    ) -> None:
        self._phases = phases
        self.number = number
        self._peers = peers
        self.requests = 0
        self.answer: Answering | None = None
        """Set by whoever takes longer than a moment to answer."""
        self.seen: SeenRequest | None = None
        self._on_request = on_request
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._idle: asyncio.TimerHandle | None = None
        self._body: list[bytes] = []
        self._kept = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._peers.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.discard(self)
        self._stop_idle()
        if self.seen is not None and not self.seen.answered:
            self.seen.client_gone_at = time.monotonic()
        if self.answer is not None:
            answer, self.answer = self.answer, None
            answer.client_gone()

    def pause_writing(self) -> None:
        if self.seen is not None:
            self.seen.paused = True

    def on_message_begin(self) -> None:
        self._stop_idle()
        self.seen = SeenRequest(self.number, time.monotonic())
        self._body = []

    def on_url(self, url: bytes) -> None:
        assert self.seen is not None
        self.seen.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.seen is not None
        self.seen.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self.seen is not None
        self.seen.method = self._parser.get_method().decode()
        self.seen.body = b"".join(self._body)
        self.requests += 1
        self._kept = self._parser.should_keep_alive()
        self._on_request(self, self.seen)

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole answer."""
        kind = f"content-type: {content_type}\r\n" if body else ""
        self.transport.write(self._head(status, f"content-length: {len(body)}\r\n{kind}") + body)
        self._answered()

    def start_stream(self) -> None:
        """Send the headers of a stream; they leave before any event."""
        self.transport.write(self._head(200, f"content-type: {STREAM_TYPE}\r\n", "transfer-encoding: chunked\r\n"))

    def start_body(self, length: int) -> None:
        """Send the headers of a body of `length` bytes that will not come whole."""
        self.transport.write(self._head(200, f"content-length: {length}\r\ncontent-type: application/json\r\n"))

    def send(self, event: bytes) -> None:
        """Send one event as one chunk."""
        if self.seen is not None and self.seen.begun is None:
            self.seen.begun = time.monotonic()
        self._write(b"%x\r\n%b\r\n" % (len(event), event))

    def end(self) -> None:
        """End a stream cleanly."""
        self._write(b"0\r\n\r\n")
        self._answered()

    def _write(self, data: bytes) -> None:
        if self._phases is None:
            self.transport.write(data)
        else:
            self._phases.write(self, data)

    def close(self) -> None:
        """Close without another byte; a body in progress is torn."""
        self.transport.close()

    def reset(self) -> None:
        """Close with a TCP reset."""
        with contextlib.suppress(OSError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.transport.abort()

    def _head(self, status: int, entity: str, framing: str = "") -> bytes:
        kept = "" if self._kept else "connection: close\r\n"
        phrase = HTTPStatus(status).phrase
        return (
            f"HTTP/1.1 {status} {phrase}\r\ndate: {http_date()}\r\nserver: uvicorn\r\n"
            f"{entity}vary: Origin\r\n{kept}{framing}\r\n"
        ).encode("latin-1")

    def _answered(self) -> None:
        assert self.seen is not None
        self.seen.answered = True
        self.answer = None
        if self._kept:
            self._idle = self._loop.call_later(self._keep_alive, self.transport.close)
        else:
            self.transport.close()

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


_date: tuple[int, str] = (0, "")


def http_date() -> str:
    """Now, as a Date header has it; formatted once a second."""
    global _date  # noqa: PLW0603 - a cache of one entry
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True))
    return _date[1]
