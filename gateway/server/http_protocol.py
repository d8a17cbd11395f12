"""HTTP/1.1 towards clients: uvicorn's protocol class with our own reader, limits, and a direct writer of the body.

This class decides what to read and when. It takes one request at a time: what a client sends ahead waits, and a client
that sends too far ahead is no longer read from.
"""

import asyncio
import fcntl
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.runtime.shares import Shares
from gateway.server.asgi import DIRECT
from gateway.server.cycle import Cycle, News, Signal
from gateway.server.framing import BadRequestError, Body, framed, head_end
from gateway.server.last_call import LAST_WORD, LINGER
from gateway.wire.errors import openai_error

_TOO_LARGE = 431
_TIMED_OUT = 408
_PHRASES = {
    400: b"Bad Request",
    405: b"Method Not Allowed",
    _TIMED_OUT: b"Request Timeout",
    _TOO_LARGE: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    505: b"HTTP Version Not Supported",
}
_NOT_HTTP = "The request is not valid HTTP."

_NO_PIPELINE: deque[Any] = deque()
"""uvicorn's line of requests that wait for their turn: here they wait in the buffer."""
_HIGH_WATER = 64 * 2**10
"""Buffered bytes at which reading pauses."""
_UNSENT = 64 * 2**10
"""Bytes waiting to be encrypted at which writing pauses: as many as without TLS, where asyncio would have 512 KiB."""
STALLED = 60.0
"""Seconds a client may leave its data unread before its connection ends, in any phase, also after we closed our side.
Like nginx's `send_timeout`. Over TCP the kernel sees to it."""
_LARGE = 256 * 2**10
"""Bytes of answers that each connection may leave unread beside `MOST_UNREAD`: the limit on connections bounds them."""
MOST_UNREAD = 256 * 2**20
"""Bytes of answers, over all connections that leave more than that unread, which this process keeps for them."""
_LINGER = 2.0
"""Seconds during which a client may keep sending what is then dropped."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits as class attributes, which `limited_protocol` sets."""

    cycle: Cycle
    max_header_bytes: int
    head_timeout: float
    idle_grace: float | None = None
    """Seconds an idle connection is kept once `retire` makes each answer the last of its connection; else None."""
    ending = False
    """Whether the process ends: nothing more is taken up."""
    unread = Shares(lambda: MOST_UNREAD)
    """Of answers, by the address of the client: one gets at most half of what the others leave."""

    # Slots: with uvicorn's own, they would be more attributes than Python keeps in little room.
    __slots__ = (
        "_body", "_buffer", "_ended", "_head_complete", "_in_head", "_keeps", "_left", "_parsed", "_refused", "_timer"
    )  # fmt: skip

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._buffer = bytearray()
        """Bytes that have arrived and were not taken yet."""
        self._in_head = False
        self._parsed = 0
        """Bytes of an incomplete head, at the front of the buffer, that the parser already has."""
        self._head_complete = False
        self._keeps = True
        """Whether the current request allows keep-alive; the parser knows that only while it reads the head."""
        self._body: Body | None = None
        """The current request's body, while part of it is still to come."""
        self._ended = False
        """Whether the client has closed its sending side."""
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._left = 0
        """Bytes of a large answer that count as unread."""
        self._no_parser()
        self.pipeline = _NO_PIPELINE

    @property
    def address(self) -> str:
        """Of the client; empty over a unix socket."""
        return "" if self.client is None else self.client[0]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow._is_writable_event = Signal()  # noqa: SLF001  # uvicorn's takes 800 bytes
        self.flow._is_writable_event.set()  # noqa: SLF001
        if self.scheme == "https":
            transport.set_write_buffer_limits(_UNSENT)
        self._set_timer(self.head_timeout, self._overdue)
        if self.ending:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._leave_unread(0)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Write no more until the client has read what it left, and cut it off if that is too much.

        Its request has given its place back, or does so now: nothing else bounds these bytes. With TLS nothing does:
        asyncio and uvloop do not tell what waits below the encryption.
        """
        super().pause_writing()
        size = self.transport.get_write_buffer_size()
        if size > _LARGE:
            if self.unread.takes(self.address, size):
                self._leave_unread(size)
            else:
                self.transport.abort()

    def resume_writing(self) -> None:
        self._leave_unread(0)
        super().resume_writing()

    def _leave_unread(self, size: int) -> None:
        if size != self._left:
            self.unread.add(self.address, size - self._left)
            self._left = size

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._buffer += data
            self._read_on()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks whether to keep the connection
        """Keep the connection while an answer is owed; close it if none is, or if the request is incomplete.

        With TLS, whose end is the end of both sides here, a client that closes its side has left.
        """
        self._ended = True
        if self._refused or self._body is not None or self._owes_nothing():
            return False
        if not self.transport.can_write_eof():
            self.transport.abort()
            return False
        self.cycle.half_closed = True
        self.cycle.message_event.set()
        return True

    # Reading.

    def _take_up(self) -> None:
        if not (self._refused or self.transport.is_closing()):
            self._read_on()

    def _read_on(self) -> None:
        """Take as much of the buffer as can be used now."""
        try:
            while self._buffer and (self._take_body() if self._body is not None else self._take_head()):
                pass
        except BadRequestError as error:
            self._refuse(error.status, str(error))
        if len(self._buffer) > _HIGH_WATER:
            self.flow.pause_reading()

    def _take_head(self) -> bool:
        """Take the next request's head; False if it is incomplete or not its turn."""
        if not self._owes_nothing():
            return False
        buffer = self._buffer
        if not self._in_head and not self._begin_head():
            return False
        end = head_end(buffer, max(0, self._parsed - 2))
        until = len(buffer) if end is None else end
        if until > self.max_header_bytes:
            raise BadRequestError(f"The request's headers are over {self.max_header_bytes} bytes.", _TOO_LARGE)
        self._parse(bytes(buffer[self._parsed : until]))
        self._parsed = until
        if self._head_complete is not (end is not None):
            raise BadRequestError(_NOT_HTTP)
        if end is None:
            if self._timer is None:
                self._set_timer(self.head_timeout, self._overdue)
            return False
        protocol = bytes(buffer[: buffer.index(b"\r\n")]).rpartition(b" ")[2]
        del buffer[:end]
        self._in_head = False
        self._stop_timer()
        self._begin_request(protocol)
        return True

    def _begin_head(self) -> bool:
        """Drop leading empty lines, which keep no connection open; return whether anything follows."""
        buffer = self._buffer
        if buffer[0] in b"\r\n":
            del buffer[: len(buffer) - len(buffer.lstrip(b"\r\n"))]
            if not buffer:
                return False
        self._in_head = True
        self._parsed = 0
        self._head_complete = False
        self._unset_keepalive_if_required()
        # A new parser for each head: no state of one head reaches the next.
        self.parser = httptools.HttpRequestParser(self)
        return True

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # it asks for another protocol and gets this one (RFC 9110, 7.8)
        except httptools.HttpParserError:
            raise BadRequestError(_NOT_HTTP) from None

    def _no_parser(self) -> None:
        """Let go of the parser: it is for heads alone, and the next one gets another."""
        self.parser = None  # uvicorn does so itself, at the end

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._keeps = self.parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """Do nothing: `framing` finds the end of a body."""

    def _begin_request(self, protocol: bytes) -> None:
        method, version = self.parser.get_method(), protocol[5:].decode("ascii")
        self._body = framed(method, protocol, self.headers, self.max_header_bytes)
        try:
            url = httptools.parse_url(self.url)
            raw_path = url.path or b"/"
            path = raw_path.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise BadRequestError("The request's target is not valid.") from None
        if url.userinfo is not None:
            raise BadRequestError("The request's target has a user, which belongs into Authorization.")
        scope = self.scope
        scope["method"], scope["http_version"] = method.decode("ascii"), version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = raw_path, url.query or b""
        self.cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=News(),
            expect_100_continue=self.expect_100_continue and version == "1.1",
            keep_alive=version == "1.1" and self._keeps and self.idle_grace is None and not self.ending,
            on_response=self.on_response_complete,
        )
        self.cycle.half_closed = self._ended
        extensions: dict[str, Any] = {DIRECT: self.cycle}
        scope["extensions"] = extensions
        self._no_parser()
        if self._body is None:
            self._end_body()
        self._start_asgi_task(self.cycle, self.app)

    def _take_body(self) -> bool:
        """Take what has arrived of the current request's body; return whether it has ended."""
        assert self._body is not None  # noqa: S101  # where it is called
        piece = self._body.take(self._buffer)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += piece
            if len(cycle.body) > _HIGH_WATER:
                self.flow.pause_reading()
        if not self._body.ended:
            cycle.message_event.set()
            if self._body.more:
                self.loop.call_soon(self._take_up)
            return False
        self._body = None
        self._end_body()
        return True

    def _end_body(self) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            self._stop_timer()
            self._await_next()
        else:
            cycle.more_body = False
            cycle.message_event.set()

    # Answering.

    def _owes_nothing(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.cycle.scope["extensions"].clear()  # cycle and scope name each other: nothing is left to the collector
        if self.transport.is_closing():
            return
        if self.cycle.last:
            if self._body is not None or self._buffer or self._unread():
                self._end_by_half()
            else:
                self.transport.close()
            return
        if self._body is not None:  # the answer came first: read the body to its end and drop it
            self._unset_keepalive_if_required()
            self._set_timer(self.head_timeout, self._overdue)
        self._read_on()
        if self._ended and self._owes_nothing():
            self.transport.close()
        elif self.ending:
            self.shutdown()

    def _await_next(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _refuse(self, status: int, message: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        if not self._owes_nothing():  # these bytes are the body of a request being served
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()  # this answer cannot go into the middle of another
                return
        body = openai_error(message, "invalid_request_error", None)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, _PHRASES[status], len(body), body)
        )
        self._end_by_half()

    def _end_by_half(self, linger: float = _LINGER) -> None:
        """Close our sending side, drop what the client still sends, and close when it does or a little later.

        Closing with unread bytes would reset the connection, and the answer could be lost.
        """
        self._refused = True
        self._buffer.clear()
        if self._ended:
            self.transport.close()
            return
        self.flow.resume_reading()
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():  # else, with TLS, the answer itself says that it is the last
            self.transport.write_eof()
        self._set_timer(linger, self.transport.close)

    # Timers, and the end of a process.

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, callback)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        """A head, or a body that nobody waits for, did not arrive in time."""
        self._timer = None
        if self._in_head:
            self._refuse(_TIMED_OUT, f"The request's headers did not arrive within {self.head_timeout:g} s.")
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """Take up nothing more, as the process ends: what has begun is the last. uvicorn calls it."""
        if self._refused or self.transport.is_closing():
            return
        if not self._owes_nothing():
            self.cycle.keep_alive = self.cycle.keep_alive and self.cycle.response_started
        elif self._in_head or self._body is not None or self._unread():
            pass  # a request is arriving
        elif self.cycle is None:  # its first one is: nginx mixes up an answer that comes before it has asked
            self._set_timer(LINGER, self._overdue)
        else:
            self._say_last_word()

    def _say_last_word(self) -> None:
        self.transport.write(LAST_WORD)
        self._end_by_half(LINGER)

    def retire(self) -> None:
        """Make the next answer the last one. An answer that has begun promised to keep the connection, so it stays."""
        assert self.idle_grace is not None  # noqa: S101  # set for all connections before
        self.timeout_keep_alive = self.idle_grace  # type: ignore[assignment]  # uvicorn has whole seconds
        if not self._owes_nothing():
            self.cycle.keep_alive = self.cycle.keep_alive and self.cycle.response_started
        elif not self._in_head:
            self._await_next()

    def idle_for(self) -> float | None:
        """Seconds that it has been waiting for a whole head; None while a request is in progress, and once it ends.

        A request is in progress until its answer has left: one that its client does not read would stay open after it
        gave its place away, and there would be no bound on connections.
        """
        if self._refused or not self._owes_nothing() or self.transport.is_closing():
            return None
        if self.transport.get_write_buffer_size():
            return None
        timer, lasts = self.timeout_keep_alive_task, float(self.timeout_keep_alive)
        if self._in_head or self.cycle is None:
            timer, lasts = self._timer, self.head_timeout
        return None if timer is None else self.loop.time() - (timer.when() - lasts)

    def give_way(self, least: float) -> bool:
        """Close it if it has been waiting for a head for this many seconds; return whether it was."""
        idle = self.idle_for()
        if idle is None or idle < least or self._unread():
            return False
        self.transport.close()
        return True

    def timeout_keep_alive_handler(self) -> None:
        if self.idle_grace is None or self.transport.is_closing():
            super().timeout_keep_alive_handler()
        elif not self._unread():  # and no head has begun: that ends this timer
            self._say_last_word()

    def _unread(self) -> int:
        """Bytes in the kernel's buffer that were not read yet."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def limited_protocol(
    protocol: type[LimitedProtocol], max_header_bytes: int, head_timeout: float
) -> type[LimitedProtocol]:
    """A protocol class for uvicorn's `http`.

    Args:
        protocol: what is limited.
        max_header_bytes: limit of the request line and all headers together; above it the answer is 431.
        head_timeout: seconds from the first byte of a head (or from the connection) to its end; then 408.
    """
    limits = {"max_header_bytes": max_header_bytes, "head_timeout": head_timeout}
    return type(protocol.__name__, (protocol,), limits)
