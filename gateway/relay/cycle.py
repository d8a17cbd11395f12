"""One request and its answer on a client's connection: the ASGI cycle, and a direct writer of the answer's body."""

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.relay.asgi import Message


class Cycle(RequestResponseCycle):
    """One request and its answer.

    Attributes:
        half_closed: the client sends no more. It may have left, or only have closed its sending side. `receive` reports
            that it left; an answer is still sent.
        last: the connection ends after this answer.
        until_close: the body ends with the connection: of HTTP/1.0, which has no chunks, where its length is not known.
    """

    half_closed = False
    last = False
    until_close = False
    _body_taken = False

    async def receive(self) -> Message:  # type: ignore[override]  # uvicorn's types are narrower
        """The next message from the client."""
        if self.half_closed and self._body_taken:
            self.disconnected = True
            self.transport.close()
        message: Message = await super().receive()  # type: ignore[assignment]
        self._body_taken = not message.get("more_body", False)
        return message

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
