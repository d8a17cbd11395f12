"""The relay's own ASGI helpers: read a body within limits, send an answer."""

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol, Self

from gateway.runtime.shares import Shares
from gateway.wire.errors import ErrorAnswer
from gateway.wire.token_ids import IdsField, with_ids, without_ids

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


class BodyTooLargeError(Exception):
    """The body is over the limit. `size` in bytes: as the client announced it, or as much as had arrived."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class BodyTimeoutError(Exception):
    """The client stopped in the middle of its body, or sends too slowly."""


class NoRoomError(Exception):
    """Request bodies already hold all the memory they may."""


class Payload:
    """A request's body, and its part of the memory that all bodies may hold. Nobody else keeps the bytes for long.

    Attributes:
        data: the body, first as it came and later as its endpoint gets it; empty before it has arrived and once it was
            dropped.
        ids: the token ids of its prompt, for an endpoint that takes them; empty for others.
        given: the body as it came, where it is kept for another model.
    """

    SMALL = 64 * 2**10

    def __init__(self, shares: Shares, flow: str) -> None:
        self.data = self.ids = self.given = b""
        self._field: IdsField | None = None
        """The field in which the body has the ids now."""
        self._end = 0
        """Where its object ended without them."""
        self._shares = shares
        self._flow = flow
        self._held = 0

    def grown(self, size: int) -> None:
        """Note how many bytes have arrived.

        Raises:
            NoRoomError: there is no memory for so many.
        """
        if size <= self.SMALL:
            return
        more = size - self._held
        if self._held < self._shares.held and not self._shares.takes(self._flow, more):
            raise NoRoomError
        self._shares.add(self._flow, more)
        self._held = size

    def keep(self, ids: bytes) -> None:
        """Keep the token ids too, if there is memory for them."""
        with contextlib.suppress(NoRoomError):
            self.grown(len(self.data) + len(self.given) + len(ids))
            self.ids = ids

    def keep_given(self) -> bool:
        """Keep the body as it came beside what an endpoint gets; False if there is no memory for both."""
        try:
            self.grown(2 * len(self.data))
        except NoRoomError:
            return False
        self.given = self.data
        return True

    def replace(self, body: bytes) -> None:
        """Go on with another body in the place of the one that an endpoint was to get."""
        self.data, self.ids, self._field = body, b"", None

    def towards(self, field: IdsField | None) -> bytes:
        """The body for an endpoint that takes token ids in this field, or none. It takes the place of the other."""
        if self._field is not field:
            if self._field is not None:
                self.data = without_ids(self.data, self._end)
            if field is not None:
                self._end = self.data.rfind(b"}")
                self.data = with_ids(self.data, field, self.ids)
            self._field = field
        return self.data

    def drop(self) -> None:
        """Forget the bytes: nobody needs them any more. May be called again."""
        self.data = self.ids = self.given = b""
        if self._held:
            self._shares.add(self._flow, -self._held)
            self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


class Room:
    """The memory that request bodies of all clients may hold together, until their answers begin.

    Args:
        most: the limit in force, in bytes. A body that is alone always has room. So do small ones: connections limit
            their number. One flow gets at most half of what the others leave.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._shares = Shares(most)

    def payload(self, flow: str) -> Payload:
        """A place for a body that is about to arrive; as a context manager it is dropped at the latest at its end."""
        return Payload(self._shares, flow)


class Allowance:
    """The time that a peer may still take: it has `timeout` seconds at most, and earns more with each byte.

    Args:
        timeout: longest silence, in seconds.
        rate: lowest average over any such time, in bytes per second.
    """

    def __init__(self, timeout: float, rate: float) -> None:
        self._timeout = timeout
        self._rate = rate
        self.left = timeout

    def went(self, seconds: float, size: int) -> None:
        """Note that the next `size` bytes took so long."""
        self.left = min(self._timeout, self.left - seconds + size / self._rate)


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


async def read_body(
    scope: Scope, receive: Receive, *, limit: int, allowance: Allowance, grown: Callable[[int], None]
) -> bytes:
    """Read the whole body.

    Args:
        scope: of the request.
        receive: of the request.
        limit: most bytes.
        allowance: the time that the client may take.
        grown: told the size as it grows; may raise `NoRoomError`.

    Raises:
        BodyTooLargeError, BodyTimeoutError, NoRoomError, ClientGoneError: as they say.
    """
    announced = header(scope, b"content-length")
    if announced is not None and int(announced) > limit:
        raise BodyTooLargeError(int(announced))
    direct = direct_access(scope)
    whole = None if direct is None else direct.arrived()
    if whole is not None:
        if len(whole) > limit:
            raise BodyTooLargeError(len(whole))
        grown(len(whole))
        return whole
    clock = asyncio.get_running_loop().time
    # Not a list of pieces: a client may send as many of them as bytes, and each would take fifty times its own. Nor a
    # bytearray: to copy it at the end takes twice the memory, and a large body 10 ms of the loop.
    body = io.BytesIO()
    size, more = 0, True
    try:
        while more:
            began = clock()
            message = await _next(receive, allowance.left)
            piece: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            allowance.went(clock() - began, len(piece))
            size += len(piece)
            if size > limit:
                raise BodyTooLargeError(size)
            grown(size)
            body.write(piece)
        return body.getvalue()
    finally:
        body.close()  # the exception keeps this frame alive until the client has its answer


async def _next(receive: Receive, timeout: float) -> Message:
    try:
        async with asyncio.timeout(timeout):
            message = await receive()
    except TimeoutError:
        raise BodyTimeoutError from None
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


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
