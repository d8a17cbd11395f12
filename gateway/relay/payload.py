"""The bodies of requests, read within limits, and the memory that all of them may hold."""

import asyncio
import contextlib
import io
from collections.abc import Callable
from typing import Self

from gateway.runtime.shares import Shares
from gateway.server.asgi import ClientGoneError, Message, Receive, Scope, direct_access, header
from gateway.wire.token_ids import IdsField, with_ids, without_ids


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
