"""The interface of an HTTP client towards endpoints, and its errors."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Headers = Sequence[tuple[bytes, bytes]]
Sink = Callable[[bytes], bool]
"""Takes a piece of a body; returns False when its receiver is behind."""
ChunkSink = Callable[[bytes, int], bool | None]
"""Takes one whole chunk as it came, in its HTTP frame, and where its content begins; the last two bytes are the
frame's, too. Returns False when its receiver is behind, and None if it leaves the chunk, as if it was not asked."""
Drained = Callable[[], Awaitable[None]]
"""Waits until the receiver has caught up."""


class UpstreamError(Exception):
    """The endpoint did not answer to the end. The message names what happened, for the log and the client."""


class ConnectFailedError(UpstreamError):
    """No connection: the endpoint never saw the request."""


class ConnectionLostError(UpstreamError):
    """The connection ended before the answer did."""


class Answer(Protocol):
    """An answer whose head has arrived. The names of its headers are in lower case."""

    status: int
    headers: Headers

    async def read_some(self) -> bytes:
        """The next bytes as they arrive, empty at the end.

        Raises:
            ConnectionLostError: the body was cut off.
        """

    async def deliver(self, sink: Sink, drained: Drained, chunks: ChunkSink | None = None) -> None:
        """Hand each further piece of the body to `sink` the moment it arrives, until the body ends.

        Args:
            sink: takes a piece. What it raises is raised here.
            drained: awaited after a False, before more is read.
            chunks: asked first about what arrives as exactly one chunk; it may be passed on in its frame.

        Raises:
            ConnectionLostError: the body was cut off.
        """

    def close(self) -> None:
        """Release the connection: keep it for reuse after a complete body, else close it at once."""


class Upstream(Protocol):
    """Sends requests to endpoints, unbuffered and unlimited in number.

    It retries in one case: the endpoint closed the pooled connection before any byte of the request had arrived there.
    The request then goes out on a fresh connection. What the endpoint may have seen, only the caller may try again.
    """

    async def send(
        self,
        base_url: str,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        alone: bool = False,
        sending: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Send a request to `base_url + path` and wait for the head of its answer.

        `alone`: on a new connection, as for a second try: a pooled one may be lost like the first. `sending`: called
        once its connection is there; until then the endpoint has seen nothing of it.

        Cancelling closes the connection.

        Raises:
            ConnectFailedError, ConnectionLostError: as they say.
        """

    async def close(self) -> None:
        """Close every connection."""
