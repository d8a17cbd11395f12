"""One side of a connection between a front and the owner."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import msgspec
import structlog

from gateway.tier.frames import FrameError, Frames, frame

MOST_UNSENT = 64 * 2**20
"""Bytes that the other side may leave untaken before it is cut off: a stopped process must not fill this one."""
_POLL = 0.01
"""Seconds between two looks at what is unsent."""
_log = structlog.get_logger("kvgate.tier")

Received = TypeVar("Received")


class Line(asyncio.Protocol, Generic[Received]):
    """Sends all messages of one turn of the event loop in one frame, and passes on those that come.

    Args:
        decode: reads the messages of the other side.
        take: called with the messages of each frame.
        lost: called when the connection has ended.
        connected: called when it is there.
    """

    def __init__(
        self,
        decode: Callable[[bytes], list[Received]],
        take: Callable[["Line[Received]", list[Received]], None],
        lost: Callable[["Line[Received]"], None],
        connected: Callable[["Line[Received]"], None] | None = None,
    ) -> None:
        self._decode = decode
        self._take = take
        self._lost = lost
        self._connected = connected
        self._frames = Frames()
        self._unsent: list[msgspec.Struct] = []
        self._transport: asyncio.Transport | None = None

    def send(self, *messages: msgspec.Struct) -> None:
        """Send messages at the end of this turn of the event loop; a connection that has ended drops them."""
        if self._transport is None:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += messages

    async def taken(self) -> None:
        """Wait until the other side has been given all that was said."""
        while self._unsent or self._buffered():  # noqa: ASYNC110  # asyncio tells only of buffers above a limit
            await asyncio.sleep(_POLL)

    def cut(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)
        if self._connected is not None:
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the other side have come."""
        try:
            batches: Sequence[list[Received]] = [self._decode(body) for body in self._frames.feed(data)]
        except (FrameError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.error("a message could not be read: the connection is given up", reason=str(error)[:200])
            self.cut()
            return
        for messages in batches:
            self._take(self, messages)

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection has ended."""
        self._transport = None
        self._unsent.clear()
        self._lost(self)

    def _buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        transport = self._transport
        if transport is None or not messages:
            return
        try:
            data = frame(messages)
        except (OverflowError, ValueError) as error:  # a number or a text that no engine should send
            _log.error("a message could not be written: the connection is given up", reason=str(error)[:200])
            self.cut()
            return
        transport.write(data)
        if transport.get_write_buffer_size() > MOST_UNSENT:
            _log.error("the other side takes nothing any more: the connection is given up")
            self.cut()
