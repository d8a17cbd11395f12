"""What the relay needs of an HTTP client towards an endpoint, and how one fails."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Headers = Sequence[tuple[bytes, bytes]]


class UpstreamError(Exception):
    """The endpoint did not answer to the end. The message names what happened, for the log and the client."""


class ConnectFailedError(UpstreamError):
    """No connection: the endpoint never saw the request."""


class ConnectionLostError(UpstreamError):
    """The connection ended before the answer did."""


class Answer(Protocol):
    """An answer whose head has arrived."""

    status: int
    headers: Headers

    async def read_some(self) -> bytes:
        """The next bytes as they arrive, empty at the end.

        Raises:
            ConnectionLostError: the body is torn.
        """

    async def deliver(self, sink: Callable[[bytes], bool], drained: Callable[[], Awaitable[None]]) -> None:
        """Hand each further piece of the body to `sink` in the instant it arrives, until the body ends.

        Args:
            sink: takes a piece; False says that whoever it is for is behind. What it raises is raised here.
            drained: then awaited before any more is read.

        Raises:
            ConnectionLostError: the body is torn.
        """

    def close(self) -> None:
        """Release the connection: kept for reuse after a complete body, else closed at once."""


class Upstream(Protocol):
    """Sends requests to endpoints, unbuffered and unlimited in number.

    The one retry it makes: a request goes out again on a fresh connection when the pooled one was closed by the
    endpoint before any byte of it had arrived there. Whatever the endpoint may have seen is its caller's to try again.
    """

    async def send(self, base_url: str, method: str, path: str, headers: Headers, body: bytes) -> Answer:
        """Send a request to `base_url + path` and wait for the head of its answer.

        Cancelling closes the connection.

        Raises:
            ConnectFailedError, ConnectionLostError: as they say.
        """

    async def close(self) -> None:
        """Close every connection."""
