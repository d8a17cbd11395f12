"""One request and its answer on a client's connection: the ASGI cycle, and a direct writer of the answer's body."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.relay.asgi import WITH_BODY, Message


class News(asyncio.Event):
    """Set when `receive` has something to tell; then calls `told`, too, if anything."""

    told: Callable[[], None] | None = None

    def set(self) -> None:
        """Wake who awaits `receive`."""
        super().set()
        if self.told is not None:
            self.told()


class Cycle(RequestResponseCycle):
    """One request and its answer.

    Attributes:
        half_closed: the client sends no more. It may have left, or only have closed its sending side. `receive` reports
            that it left; an answer is still sent.
        last: the connection ends after this answer.
        until_close: the body ends with the connection: of HTTP/1.0, which has no chunks, where its length is not known.
    """

    message_event: News
    half_closed = False
    last = False
    until_close = False
    _body_taken = False

    async def receive(self) -> Message:  # type: ignore[override]  # uvicorn's types are narrower
        """The next message from the client."""
        self._note_half_closed()
        message: Message = await super().receive()  # type: ignore[assignment]
        self._body_taken = not message.get("more_body", False)
        return message

    def arrived(self) -> bytes | None:
        """Take the body, if it has arrived whole; else None."""
        if self.more_body or self.disconnected or self._body_taken:
            return None
        self._body_taken = True
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    def leaving(self, left: Callable[[], None]) -> Callable[[], None]:
        """Have `left` called once the client has left. To be called after the body was taken; returns what ends it."""

        def look() -> None:
            if self.message_event.told is None or self.response_complete:
                return
            self._note_half_closed()
            if self.disconnected:
                end()
                left()

        def end() -> None:
            self.message_event.told = None

        self.flow.resume_reading()
        self.message_event.told = look
        if self.half_closed or self.disconnected:  # what needs nothing else is answered first
            asyncio.get_running_loop().call_soon(look)
        return end

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
        if message.get(WITH_BODY):
            self.transport = _WithBody(self.transport)  # type: ignore[assignment]  # as much of one as is used here
        await super().send(message)  # type: ignore[arg-type]


class _WithBody:
    """A transport that holds an answer's head until its body comes: one system call and one packet for both."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.close = transport.close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Hold the head; write the body after it."""
        if self._head is None:
            self._head = data
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)


def _has_length(head: Message) -> bool:
    return any(name == b"content-length" for name, _ in head["headers"])


def body_writer(cycle: Cycle) -> Callable[[bytes], bool]:
    """Write a piece of an answer's body of unknown length without a coroutine; False when the client is behind.

    It does exactly what `send` does with `http.response.body` once an answer has started.
    """
    flow, transport = cycle.flow, cycle.transport

    def write(data: bytes) -> bool:
        if cycle.disconnected:
            return True
        if cycle.response_complete or not (cycle.chunked_encoding or cycle.until_close):
            raise RuntimeError("only the body of a chunked answer that has started can be written to directly")
        transport.write(data if cycle.until_close else b"%x\r\n%b\r\n" % (len(data), data))
        return not flow.write_paused

    return write


def chunk_writer(cycle: Cycle) -> Callable[[bytes], bool] | None:
    """Write a chunk of an answer's body, framed as it came from the endpoint; see `body_writer`.

    None if the answer has not begun, or does not go out in chunks.
    """
    if not cycle.response_started or cycle.response_complete or cycle.until_close or not cycle.chunked_encoding:
        return None
    flow, send = cycle.flow, cycle.transport.write

    def write(chunk: bytes) -> bool:
        if cycle.disconnected:
            return True
        send(chunk)
        return not flow.write_paused

    return write
