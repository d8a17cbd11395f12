"""The other end of a line, in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.tier.frames import Frames, frame
from gateway.tier.line import Line


class Other:
    """Takes down what a line sends, and sends it what a test likes. It is the line's transport.

    Attributes:
        aborted: whether the line cut the connection.
        untaken: bytes that the line's process holds for it.
    """

    def __init__(self, line: Line[Any], decode: Callable[[bytes], list[Any]]) -> None:
        self.line = line
        self.written = b""
        self.untaken = 0
        self.aborted = False
        self._decode = decode
        self._frames = Frames()
        line.connection_made(self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            asyncio.get_running_loop().call_soon(self.line.connection_lost, None)

    def frames(self) -> list[list[Any]]:
        """What has come since the last call, by frame."""
        data, self.written = self.written, b""
        return [self._decode(body) for body in self._frames.feed(data)]

    async def heard(self) -> list[Any]:
        """What has come since the last call, once the line has said it."""
        await turns()
        return [message for messages in self.frames() for message in messages]

    def say(self, *messages: Any) -> None:
        """Send messages in one frame."""
        self.line.data_received(frame(messages))

    async def end(self) -> None:
        """End the connection."""
        self.line.connection_lost(None)
        await turns()


async def turns(count: int = 5) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)
