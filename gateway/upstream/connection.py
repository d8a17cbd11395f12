"""One HTTP/1.1 connection to an endpoint: sends a request, hands on its answer piece by piece."""

import asyncio
import socket
import struct
from typing import cast

import httptools

from gateway.upstream.interface import ChunkSink, ConnectionLostError, Drained, Sink

_HIGH_WATER = 64 * 2**10
"""Unread bytes at which the connection stops reading: the most a slow client costs us here."""
_PIECE = 256 * 2**10
"""Most bytes of a request that are written in one turn of the event loop: with TLS they are encrypted in it."""
_NOTHING = memoryview(b"")
"""Instead of an empty rest of a body, which would keep all of it."""
_MAX_UNFRAMED = 64 * 2**10
"""Most bytes an endpoint may send that are no body: heads, trailers, interim answers, and what frames small chunks."""
_EARNED = 2
"""Of these, each byte of a body makes up for so many: chunks of five bytes and more may follow one another for ever."""
_LOST = "the connection was closed before the answer ended"
_NOT_HTTP = "its answer is not HTTP"
_TOO_LARGE = f"its answer has over {_MAX_UNFRAMED // 2**10} KB of headers, or of chunks of a few bytes"
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_LARGEST_FRAMED = 4096
"""Most bytes of the content of a chunk that may be passed on in its frame: an event of a token has some hundreds."""
_SIZE_LINES = {
    len(line) + size + 2: line for size, line in ((size, b"%x\r\n" % size) for size in range(1, _LARGEST_FRAMED + 1))
}
"""By its length: how a read begins if it is exactly one chunk, its size written as servers do."""
_FIRST, _LAST = 100, 599
"""Statuses below and above are undefined (RFC 9110, 15)."""
_FIRST_FINAL = 200
"""Lower statuses are interim: the answer follows."""
_SERVER_FAILED = 500
"""uvicorn, and so vLLM and SGLang, ends the connection after it and does not say so: the next request would be lost."""
_ENDS_STREAMS = (b"server", b"llama.cpp")
"""llama-server ends the connection after a stream, whose length it cannot tell, and says that it keeps it."""
BODILESS = frozenset({204, 304})
"""Their `Content-Length` announces no body, and a 204 has none (RFC 9110, 8.6)."""
_TCP_INFO = struct.Struct("=B119xQ")
"""`tcpi_state` and `tcpi_bytes_acked` of Linux's `struct tcp_info`."""
ESTABLISHED = 1
"""The state of a connection in which both sides may send, as TCP_INFO tells it."""


class _SurplusError(Exception):
    """Something follows a complete answer."""


class _StatusError(Exception):
    """The status is not defined."""


class _CodingError(Exception):
    """The transfer coding is not known here: passed on, its bytes would seem to be the body's own."""


class Connection(asyncio.Protocol):
    """A connection that serves one request at a time.

    The parser's callbacks run in `data_received`. While a sink is set, each piece of a body goes straight to it;
    otherwise pieces wait for `read`.

    Attributes:
        untouched: the connection ended before any byte of the current request had reached the endpoint.
        status: of the current answer.
        headers: of the current answer, names in lower case.
    """

    def __init__(self) -> None:
        self.untouched = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._head: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._arrived: list[bytes] = []
        """Pieces of a body in the read that is being parsed."""
        self._unsent = _NOTHING
        """What is left of a large request."""
        self._full = False
        """Whether the endpoint has yet to take what was written."""
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._paused = False
        self._sink: Sink | None = None
        self._chunks: ChunkSink | None = None
        self._passing: ChunkSink | None = None
        """The same while what arrives next begins a chunk, and somebody takes it."""
        self._between = False
        """Whether the parser has ended a chunk and begun no other."""
        self._acked = 0
        """Bytes that the endpoint's kernel had acknowledged when the current request was sent."""
        self._unframed = 0
        """Bytes that were no body, less what bodies have made up for."""
        self._in_head = False
        self._complete = True
        self._keep_alive = False
        self._until_close = False
        self._ends = False
        """Whether its server ends it after the current answer, as far as known."""
        self._behind = False
        self._failed: Exception | None = None
        self._lost: str | None = None

    # Called by the pool and the answer.

    @property
    def open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether it can take another request: the last is sent and its answer read, and both sides stay connected."""
        if self._transport is None or self._unsent or self._transport.get_write_buffer_size():
            return False  # it answered before it had read the request: what follows would wait behind the rest
        return self.open and self._complete and self._keep_alive and not self._pieces and not self._paused

    async def request(self, head: bytes, body: bytes) -> None:
        """Send a request and wait for the head of its answer. Cancelling closes the connection.

        Raises:
            ConnectionLostError: the connection ended before that.
        """
        state, self._acked = self._tcp_info()
        if self._transport is None or state != ESTABLISHED:  # the endpoint has closed it, perhaps just now
            self.untouched = True
            self.abort()
            raise ConnectionLostError(_LOST)
        self._complete = self._keep_alive = self._until_close = False
        self._in_head = True
        self._between = False
        self._unframed = 0
        self.headers = []
        self._head = self._loop.create_future()
        self._transport.write(head + body if len(body) < _HIGH_WATER else head)
        if len(body) >= _HIGH_WATER:
            self._unsent = memoryview(body)
            self._write_on()
        try:
            await self._head
        except BaseException:
            self.abort()
            raise
        finally:
            self._head = None  # with its exception it would keep this frame, and the body, until the next collection

    async def read(self) -> bytes:
        """Wait for the next part of the body and return it; empty at the end.

        Raises:
            ConnectionLostError: the body was cut off.
        """
        while not self._pieces:
            if self._complete:
                return b""
            if self._lost is not None:
                raise ConnectionLostError(self._lost)
            await self._arrival()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting_bytes = 0
        self._resume()
        return data

    async def deliver(self, sink: Sink, drained: Drained, chunks: ChunkSink | None = None) -> None:
        """Hand each further piece of the body on, in the callback it arrives in, until the body ends; see `Answer`.

        Raises:
            ConnectionLostError: the body was cut off.
        """
        try:
            while True:
                if self._failed is not None:
                    raise self._failed
                if self._behind:
                    self._behind = False
                    await drained()
                while self._pieces:
                    pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
                    for piece in pieces:
                        try:
                            keeps_up = sink(piece)
                        except Exception:
                            self._keep_alive = False
                            raise
                        if not keeps_up:
                            await drained()
                if self._complete:
                    return
                if self._lost is not None:
                    raise ConnectionLostError(self._lost)
                self._sink, self._chunks = sink, chunks
                self._passing = chunks if self._between else None
                self._resume()
                await self._arrival()
                self._sink = self._chunks = self._passing = None
        finally:
            self._sink = self._chunks = self._passing = None

    def abort(self) -> None:
        """Close at once, so that the endpoint sees it now."""
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, not the class

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._write_on()

    def data_received(self, data: bytes) -> None:
        passing = self._passing
        if passing is not None:
            size_line = _SIZE_LINES.get(len(data), ())
            if data.startswith(size_line) and data.endswith(b"\r\n"):
                try:
                    keeps_up = passing(data, len(size_line))
                except Exception as error:  # noqa: BLE001  # raised in `deliver`, where somebody is responsible
                    self._stop_delivering(error)
                    return
                if keeps_up is not None:  # the parser need not see it
                    if self._unframed:
                        self._earn(len(data), len(data) - len(size_line) - 2)
                    if not keeps_up:
                        self._stop_delivering()
                    return
        if self._complete:  # no request is open
            self.abort()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        self._unframed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._pass_on()
            self._give_up(_NOT_HTTP)
        else:
            self._between = self._between and data.endswith(b"\n")  # else a chunk's first line has begun
            self._pass_on()
            self._passing = self._chunks if self._between else None
        if self._unframed > _MAX_UNFRAMED:
            self._give_up(_TOO_LARGE)

    def eof_received(self) -> None:
        # After its end the endpoint reads nothing: bytes it has not acknowledged by now never arrived.
        self.untouched = not self._complete and self._tcp_info()[1] == self._acked

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsent = _NOTHING
        if self._until_close and exc is None and not self._complete:
            self._complete = True
            self._wake()
        elif not self._complete:
            self._end(_LOST)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._complete:
            raise _SurplusError

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # and not a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not _FIRST <= self.status <= _LAST:
            raise _StatusError
        if self.status < _FIRST_FINAL:
            return
        self._in_head = False
        if self.status in BODILESS:
            self.headers = [header for header in self.headers if header[0] != b"content-length"]
        framing = [(name, value) for name, value in self.headers if name in _FRAMING]
        if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in framing):
            raise _CodingError
        self._until_close = not framing
        self._ends = _ENDS_STREAMS in self.headers and (b"transfer-encoding", b"chunked") in framing
        if self._head is not None and not self._head.done():
            self._head.set_result(None)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = not self._complete

    def on_body(self, body: bytes) -> None:
        self._earn(0, len(body))
        self._arrived.append(body)

    def on_message_complete(self) -> None:
        if self.status < _FIRST_FINAL:
            self.headers = []
            return
        self._complete = True
        self._between = False
        self._keep_alive = self._parser.should_keep_alive() and self.status != _SERVER_FAILED and not self._ends
        self._wake()

    # Helpers.

    def _write_on(self) -> None:
        """Write the next piece of a large request; the one after it when this one has gone."""
        if self._unsent and self._transport is not None:
            piece, rest = self._unsent[:_PIECE], self._unsent[_PIECE:]
            self._unsent = rest or _NOTHING
            self._transport.write(piece)
            if not self._full:
                self._loop.call_soon(self._write_on)

    def _earn(self, arrived: int, body: int) -> None:
        """Account for bytes that arrived, and those of a body among them."""
        self._unframed = max(0, self._unframed + arrived - _EARNED * body)

    def _pass_on(self) -> None:
        """Hand over the body's part of one read as one piece: it may have come in one-byte chunks."""
        if not self._arrived:
            return
        body = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
        self._arrived.clear()
        if self._sink is not None:
            try:
                if self._sink(body):
                    return
            except Exception as error:  # noqa: BLE001  # raised in `deliver`, where somebody is responsible
                self._stop_delivering(error)
            else:
                self._stop_delivering()
            return
        self._pieces.append(body)
        self._waiting_bytes += len(body)
        if self._waiting_bytes > _HIGH_WATER:
            self._pause()
        self._wake()

    def _stop_delivering(self, failed: Exception | None = None) -> None:
        """Bring no more until `deliver` has raised what failed or, if nothing did, waited for the receiver."""
        if failed is None:
            self._behind = True
        else:
            self._failed, self._keep_alive = failed, False
        self._sink = self._chunks = self._passing = None
        self._pause()
        self._wake()

    def _arrival(self) -> asyncio.Future[None]:
        """The next piece, the end or an error, to wait for."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _tcp_info(self) -> tuple[int, int]:
        """The kernel's view: the connection's state, and the bytes sent that the endpoint has acknowledged."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0, 0
        told: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        state, acked = _TCP_INFO.unpack(told)
        return state, acked

    def _give_up(self, reason: str) -> None:
        """Close. After a complete answer this is no error: what follows belongs to no request."""
        if self._complete:
            self._keep_alive = False
        else:
            self._end(reason)
        self.abort()

    def _end(self, reason: str) -> None:
        self._lost = self._lost or reason
        if self._head is not None and not self._head.done():
            self._head.set_exception(ConnectionLostError(self._lost))
        self._wake()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
