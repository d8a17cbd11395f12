"""ASGI, and what this server offers beside it: an application finds a request's parts by it, and answers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from gateway.wire.errors import ErrorAnswer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


_LINGER = 10.0
"""Seconds during which a client may keep sending a body that was refused."""

DIRECT = "kvgate.direct"
"""Key in `scope["extensions"]` of the `Direct` that our own server offers. Under others `send` and `receive` do the
same, slower."""


class Direct(Protocol):
    """One request, for those that need not go through ASGI's messages."""

    def write(self, data: bytes) -> bool:
        """Write a piece of an answer's body at once; False when the client is behind."""

    def chunks(self) -> Callable[[bytes], bool] | None:
        """What writes a chunk of an answer that has begun, in its HTTP frame; None if this client gets no chunks."""

    def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write an answer, whose headers tell its length, in one piece; False if it has to go through `send`."""

    def arrived(self) -> bytes | None:
        """Take the request's body if all of it has arrived: without a timer."""

    def leaving(self, left: Callable[[], None]) -> Callable[[], object]:
        """Have `left` called once the client has left: without a task. Returns what ends that."""


class Body:
    """The body of an answer that has started, written piece by piece."""

    __slots__ = ("_direct", "_late", "_send", "write")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._late = b""
        direct = direct_access(scope)
        self._direct = direct
        self.write = self._keep if direct is None else direct.write
        """Take a piece. After False, await `drained` before the next one."""

    def chunks(self) -> Callable[[bytes], bool] | None:
        """What takes a chunk as it came, in its HTTP frame, once the answer has begun; None if the client gets none."""
        return None if self._direct is None else self._direct.chunks()

    def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """See `Direct.whole`."""
        return self._direct is not None and self._direct.whole(status, headers, body)

    async def drained(self) -> None:
        """Wait until the client has caught up."""
        late, self._late = self._late, b""
        await self._send({"type": "http.response.body", "body": late, "more_body": True})

    def _keep(self, data: bytes) -> bool:
        self._late += data
        return False


class ClientGoneError(Exception):
    """The client closed its connection, or reads its answer too slowly."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name (in lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def path(scope: Scope) -> str:
    """The path and query as the client sent them."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw.split(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")


def direct_access(scope: Scope) -> Direct | None:
    """What the server offers beside ASGI; None if it is not ours."""
    direct: Direct | None = scope.get("extensions", {}).get(DIRECT)
    return direct


async def send_answer(
    send: Send,
    answer: ErrorAnswer,
    extra: tuple[tuple[bytes, bytes], ...] = (),
    *,
    close: bool = False,
    unread: Receive | None = None,
) -> None:
    """Send a complete answer.

    Args:
        send: of the request.
        answer: status, headers and body.
        extra: more headers.
        close: end the connection after the answer.
        unread: the request's body was not read to its end. What the client still sends is dropped for a while before
            the connection closes: closing on unread bytes would reset the connection and lose the answer.
    """
    headers = [*answer.headers, *extra]
    if close or unread is not None:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if unread is None:
        await send({"type": "http.response.body", "body": answer.body})
        return
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await unread()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
