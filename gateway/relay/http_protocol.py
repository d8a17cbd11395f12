"""uvicorn's HTTP protocol with what it lacks: limits on the size and time of a head, and a direct way to the body."""

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.relay.asgi import BODY_EXTENSION
from gateway.wire.errors import openai_error

_TOO_LARGE = 431
_TIMED_OUT = 408
_MALFORMED = 400
_PHRASES = {
    _TOO_LARGE: b"Request Header Fields Too Large",
    _TIMED_OUT: b"Request Timeout",
    _MALFORMED: b"Bad Request",
}


_LINGER = 2.0
"""Seconds for which a client may go on sending what is not taken any more."""


class _HeadTooLargeError(Exception):
    pass


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits as class attributes, which `limited_protocol` sets."""

    max_header_bytes: int
    head_timeout: float
    idle_grace: float | None = None
    """Seconds an idle connection is kept where each answer is to be the last of its connection; None where not."""

    _head_bytes = 0
    """Of the names and values that were parsed."""
    _received_bytes = 0
    """The same in all, while the head has not ended: a header that never ends is never shown to us."""
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:
            self._received_bytes += len(data)
            if self._received_bytes > self.max_header_bytes:
                self._refuse(_TOO_LARGE, f"The request's headers are over {self.max_header_bytes} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = self._received_bytes = 0
        if self._head_timer is None:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        self._take(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._take(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        extensions: dict[str, Any] = {BODY_EXTENSION: _body_writer(self.cycle)}
        self.scope["extensions"] = extensions
        if self.idle_grace is not None:
            self.cycle.keep_alive = False

    def retire(self) -> None:
        """Make the next answer the last one. An answer that has begun said that the connection stays, and it does."""
        assert self.idle_grace is not None  # noqa: S101  # set for all connections before
        self.timeout_keep_alive = self.idle_grace  # type: ignore[assignment]  # uvicorn has whole seconds
        if self.cycle is None or self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(self.idle_grace, self.timeout_keep_alive_handler)
        elif not self.cycle.response_started:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        if self.idle_grace is None or self.transport.is_closing():
            super().timeout_keep_alive_handler()
        elif not (self._in_head or self._unread()):
            # A client that is just about to send sees an end rather than a reset, and asks again elsewhere.
            self._end_by_half()

    def _unread(self) -> int:
        """Bytes that have arrived and were not given to us yet."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's signature
        if self._head_bytes > self.max_header_bytes:
            self._refuse(_TOO_LARGE, f"The request's headers are over {self.max_header_bytes} bytes.")
        else:
            self._refuse(_MALFORMED, "The request is not valid HTTP.")

    def _take(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.max_header_bytes:
            raise _HeadTooLargeError

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout, self._head_overdue)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_overdue(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(_TIMED_OUT, f"The request's headers did not arrive within {self.head_timeout:g} s.")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # in the middle of another answer there is no place for this one
            return
        body = openai_error(message, "invalid_request_error", None)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, _PHRASES[status], len(body), body)
        )
        # Closing on bytes that were not read would reset the connection, and the answer would be lost.
        self._end_by_half()

    def _end_by_half(self) -> None:
        """Say that nothing more comes, and close a little later; what the client still sends is dropped."""
        self._refused = True
        self._stop_timer()
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(_LINGER, self.transport.close)


def _body_writer(cycle: RequestResponseCycle) -> Callable[[bytes], bool]:
    """Write a piece of a chunked answer's body without a coroutine; False when the client is behind.

    Does what `send` does with `http.response.body` once an answer has started, and nothing else.
    """
    flow, transport = cycle.flow, cycle.transport

    def write(data: bytes) -> bool:
        if cycle.disconnected:
            return True
        if not cycle.chunked_encoding or cycle.response_complete:
            raise RuntimeError("only the body of a chunked answer that has started can be written to directly")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not flow.write_paused

    return write


def limited_protocol(max_header_bytes: int, head_timeout: float) -> type[LimitedProtocol]:
    """A protocol class for uvicorn's `http`.

    Args:
        max_header_bytes: of the request line and all headers; over it a request is answered with 431.
        head_timeout: seconds from the first byte of a head (or of the connection) to its end; then 408.
    """
    limits = {"max_header_bytes": max_header_bytes, "head_timeout": head_timeout}
    return type("LimitedProtocol", (LimitedProtocol,), limits)
