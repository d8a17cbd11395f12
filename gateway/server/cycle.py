"""One request and its answer on a client's connection: the ASGI cycle, and a direct writer of the answer's body."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.server.asgi import Message

_NOBODY: deque[Any] = deque()
"""The empty list of waiters that all signals share while nobody waits for them. One each would take 760 bytes."""
_IN_LINES = bytes([*range(0x20, 0x7F), *range(0x80, 0x100), 0x09])
"""The bytes that a line of an answer's head may hold."""


class Signal(asyncio.Event):
    """An event for which seldom anybody waits: it makes room for those who do when the first one comes."""

    def __init__(self) -> None:
        self._value = False
        self._waiters = _NOBODY

    async def wait(self) -> Literal[True]:
        """Wait until it is set."""
        if self._waiters is _NOBODY:
            self._waiters = deque()
        return await super().wait()


class News(Signal):
    """Set when `receive` has something to tell; then also calls `told`, if that is set."""

    told: Callable[[], None] | None = None

    def set(self) -> None:
        """Wake who awaits `receive`."""
        super().set()
        if self.told is not None:
            self.told()


class Cycle(RequestResponseCycle):
    """One request and its answer. It is its own `Direct`.

    Attributes:
        half_closed: the client sends no more. It may have left, or only have closed its sending side. `receive` reports
            that it left; an answer is still sent.
        last: the connection ends after this answer.
        until_close: the end of the connection ends the body: HTTP/1.0 has no chunks, and the length is unknown.
    """

    message_event: News
    half_closed = False
    last = False
    until_close = False
    _body_taken = False
    _left: Callable[[], None] | None = None
    """What to call once the client has left."""

    async def receive(self) -> Message:  # type: ignore[override]  # uvicorn's types are narrower
        """The next message from the client."""
        self._note_half_closed()
        message: Message = await super().receive()  # type: ignore[assignment]
        self._body_taken = not message.get("more_body", False)
        return message

    def arrived(self) -> bytes | None:
        """See `Direct.arrived`."""
        if self.more_body or self.disconnected or self._body_taken:
            return None
        self._body_taken = True
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    def leaving(self, left: Callable[[], None]) -> Callable[[], None]:
        """See `Direct.leaving`. To be called after the body was taken."""
        self.flow.resume_reading()
        self._left, self.message_event.told = left, self._look
        if self.half_closed or self.disconnected:  # not yet: what can be answered at once still is
            asyncio.get_running_loop().call_soon(self._look)
        return self._stay

    def _look(self) -> None:
        left = self._left
        if left is None or self.response_complete:
            return
        self._note_half_closed()
        if self.disconnected:
            self._stay()
            left()

    def _stay(self) -> None:
        self._left = self.message_event.told = None

    def write(self, data: bytes) -> bool:
        """See `Direct.write`. It does exactly what `send` does with `http.response.body` once an answer has started."""
        if self.disconnected:
            return True
        if self.response_complete or not (self.chunked_encoding or self.until_close):
            raise RuntimeError("only the body of a chunked answer that has started can be written to directly")
        self.transport.write(data if self.until_close else b"%x\r\n%b\r\n" % (len(data), data))
        return not self.flow.write_paused

    def chunks(self) -> Callable[[bytes], bool] | None:
        """See `Direct.chunks`."""
        goes_on = self.response_started and not self.response_complete
        return self._write_chunk if goes_on and self.chunked_encoding and not self.until_close else None

    def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """See `Direct.whole`. Has the effect of `send` with both messages, or none and returns False."""
        waits = self.more_body or self.flow.write_paused or self.disconnected
        if waits or self.response_started or self.scope["method"] == "HEAD":
            return False
        lines = self.default_headers + headers
        if not self.keep_alive:
            lines.append((b"connection", b"close"))
            self.last = True
        pieces = [STATUS_LINE[status]]
        for name, value in lines:
            pieces += (name, b": ", value, b"\r\n")
        pieces.append(b"\r\n")
        head = b"".join(pieces)
        if head.translate(None, _IN_LINES) != b"\r\n" * (len(lines) + 2):
            raise RuntimeError("a header of an answer has a line break or another control character")
        self.response_started = self.response_complete = True
        self.transport.write(head + body)
        self.message_event.set()
        self.on_response()
        return True

    def _write_chunk(self, chunk: bytes) -> bool:
        if self.disconnected:
            return True
        self.transport.write(chunk)
        return not self.flow.write_paused

    def _note_half_closed(self) -> None:
        if self.half_closed and self._body_taken:
            self.disconnected = True
            self.transport.close()

    async def send(self, message: Message) -> None:  # type: ignore[override]
        """Write a part of the answer."""
        if not self.response_started and self.waiting_for_100_continue and self.more_body:
            self.keep_alive = False  # the announced body may never come
        if message["type"] == "http.response.body" and not message.get("more_body", False) and not self.keep_alive:
            self.last = self.keep_alive = True  # the protocol ends it, see `on_response_complete`
        if message["type"] == "http.response.start":
            self.until_close = self.scope["http_version"] == "1.0" and not _has_length(message)
        if self.until_close:  # uvicorn would send chunks, or count the body against a length
            self.chunked_encoding = False
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)  # type: ignore[arg-type]


def _has_length(head: Message) -> bool:
    return any(name == b"content-length" for name, _ in head["headers"])
