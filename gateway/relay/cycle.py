"""One request and its answer on a client's connection, as ASGI wants them, and the direct way to the answer's body."""

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.relay.asgi import Message


class Cycle(RequestResponseCycle):
    """One request and its answer.

    Attributes:
        half_closed: the client sends nothing any more. It may have left, or only have said that this was all. Whoever
            asks `receive` whether it is still there is told that it left; who just answers is heard.
        last: the connection ends after this answer.
    """

    half_closed = False
    last = False
    _body_taken = False

    async def receive(self) -> Message:  # type: ignore[override]  # uvicorn's types are narrower
        """The next message of the client."""
        if self.half_closed and self._body_taken:
            self.disconnected = True
            self.transport.close()
        message: Message = await super().receive()  # type: ignore[assignment]
        self._body_taken = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:  # type: ignore[override]
        """Write a part of the answer."""
        if not self.response_started and self.waiting_for_100_continue and self.more_body:
            self.keep_alive = False  # it may never send the body that it announced
        if message["type"] == "http.response.body" and not message.get("more_body", False) and not self.keep_alive:
            self.last = self.keep_alive = True  # how it ends is the protocol's, see `on_response_complete`
        await super().send(message)  # type: ignore[arg-type]


def body_writer(cycle: RequestResponseCycle) -> Callable[[bytes], bool]:
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
