"""Message framing: finds the end of a request's head and body, so that every byte belongs to exactly one request.

httptools parses a head. Its end is found here, so that nothing in it (an `Upgrade`, a `CONNECT`) changes how the bytes
after it are read. A head that a proxy before us could read differently is refused (RFC 9112, 11.2).
"""

import re
from collections.abc import Sequence
from typing import Protocol

_BAD_REQUEST = 400
_METHOD_NOT_ALLOWED = 405
_NOT_IMPLEMENTED = 501
_VERSION_NOT_SUPPORTED = 505

_HOST = re.compile(rb"(?:(?:[!$&'()*+,\-0-9;=A-Z_a-z~]|\.(?!\.)|%[0-9A-Fa-f]{2})+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
"""A `Host` as in RFC 9110, 7.2. No name has two dots in a row."""
_PROTOCOLS = {b"HTTP/1.0", b"HTTP/1.1"}
_ONCE = (b"host", b"authorization")
"""Headers that must not repeat: a server before or behind us could choose another of them than we do."""
_FIRST_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?\r\n")
_NEXT_CHUNK = re.compile(rb"\r\n" + _FIRST_CHUNK.pattern)
"""A chunk's first line, after the line break that ends the chunk before it."""
_MAX_CHUNK_LINE = 4096
_AT_ONCE = 4096
"""Chunks taken before other work on the event loop gets its turn; a one-byte chunk takes 2 us."""
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n")


class BadRequestError(Exception):
    """The bytes that arrived are no request kvgate can serve. The message is for the client."""

    def __init__(self, message: str, status: int = _BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class Body(Protocol):
    """The body of a request whose head has ended."""

    @property
    def ended(self) -> bool:
        """Whether its last byte was taken."""

    @property
    def more(self) -> bool:
        """Whether to call `take` again although no more has arrived: it paused to give other work a turn."""

    def take(self, buffer: bytearray) -> bytes:
        """Take the body's bytes from the front of the buffer; return the content among them.

        Raises:
            BadRequestError: the framing is wrong.
        """


class CountedBody:
    """A body whose length the head announced."""

    more = False

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def ended(self) -> bool:
        """See `Body.ended`."""
        return self._left == 0

    def take(self, buffer: bytearray) -> bytes:
        """See `Body.take`."""
        piece = bytes(buffer[: self._left])
        del buffer[: self._left]
        self._left -= len(piece)
        return piece


class ChunkedBody:
    """A body in chunks. Chunk extensions and trailers are checked and dropped.

    Args:
        max_trailer_bytes: most bytes of all trailers together.
    """

    def __init__(self, max_trailer_bytes: int) -> None:
        self._trailer_bytes_left = max_trailer_bytes
        self._left = 0
        """Bytes of content still to come in the current chunk."""
        self._searched = 0
        """Bytes of the trailer that has begun, among which no line break is."""
        self._started = self._in_trailers = False
        self.ended = self.more = False

    def take(self, buffer: bytearray) -> bytes:
        """See `Body.take`."""
        pieces: list[bytearray] = []
        at = 0
        self.more = False
        while not self._in_trailers:
            if len(pieces) == _AT_ONCE:
                self.more = True
                break
            if self._left:
                piece = buffer[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
            line = (_NEXT_CHUNK if self._started else _FIRST_CHUNK).match(buffer, at)
            if line is None:
                self._check_begun_line(buffer, at)
                break
            at = line.end()
            self._started = True
            self._left = int(line[1], 16)
            self._in_trailers = self._left == 0
        if self._in_trailers:
            at = self._take_trailers(buffer, at)
        del buffer[:at]
        return b"".join(pieces)

    def _check_begun_line(self, buffer: bytearray, at: int) -> None:
        """Raise if the incomplete line that begins here can no longer become a valid chunk line."""
        if self._started:  # it begins with the end of the chunk before
            if not b"\r\n".startswith(buffer[at : at + 2]):
                raise BadRequestError("The request body has a chunk that does not end where its size says.")
            at += 2
        if buffer.find(b"\n", at) >= 0 or len(buffer) - at > _MAX_CHUNK_LINE:
            raise BadRequestError("The request body has a chunk without a valid size.")

    def _take_trailers(self, buffer: bytearray, at: int) -> int:
        while end := buffer.find(b"\n", at + self._searched) + 1:
            self._searched = 0
            if end == at + 2 and buffer.startswith(b"\r", at):
                self.ended = True
                return end
            if _TRAILER.fullmatch(buffer, at, end) is None:
                raise BadRequestError("The request body has a trailer that is not valid.")
            self._trailer_bytes_left -= end - at
            at = end
        self._searched = len(buffer) - at
        if self._searched > self._trailer_bytes_left:
            raise BadRequestError("The request body's trailers are too large.")
        return at


def head_end(buffer: bytearray, start: int) -> int | None:
    """The end of the head at the front of the buffer; None while incomplete. No blank line begins before `start`."""
    blank = buffer.find(b"\n\r\n", start)
    bare = buffer.find(b"\n\n", start, blank if blank >= 0 else len(buffer))
    if bare >= 0:
        return bare + 2
    return blank + 3 if blank >= 0 else None


def framed(
    method: bytes, protocol: bytes, headers: Sequence[tuple[bytes, bytes]], max_trailer_bytes: int
) -> Body | None:
    """The body that follows a head; None if there is none.

    Args:
        method: of the request.
        protocol: the end of its first line, such as HTTP/1.1.
        headers: with lower-case names. httptools has checked that a length is one number, given once.
        max_trailer_bytes: see `ChunkedBody`.

    Raises:
        BadRequestError: kvgate does not serve such a request.
    """
    if protocol not in _PROTOCOLS:
        raise BadRequestError("Only HTTP/1.1 and HTTP/1.0 are served here.", _VERSION_NOT_SUPPORTED)
    if method == b"CONNECT":
        raise BadRequestError("CONNECT is not served here: this is no proxy for other servers.", _METHOD_NOT_ALLOWED)
    names = [name for name, _ in headers]
    for once in _ONCE:
        if names.count(once) > 1:
            raise BadRequestError(f"The request has more than one {once.decode().title()} header.")
    given = dict(headers)
    host = given.get(b"host")
    if host is None and protocol == b"HTTP/1.1":
        raise BadRequestError("The request has no Host header.")
    if host is not None and _HOST.fullmatch(host.strip()) is None:
        raise BadRequestError("The Host header names no host.")
    if (coding := given.get(b"transfer-encoding")) is not None:
        if protocol == b"HTTP/1.0" or b"content-length" in given:
            raise BadRequestError("Transfer-Encoding goes with HTTP/1.1, and not with Content-Length.")
        if names.count(b"transfer-encoding") > 1 or coding.strip().lower() != b"chunked":
            raise BadRequestError("The only Transfer-Encoding that is known here is chunked.", _NOT_IMPLEMENTED)
        return ChunkedBody(max_trailer_bytes)
    length = _number(given.get(b"content-length", b"0"))
    return CountedBody(length) if length else None


def _number(written: bytes) -> int:
    try:
        return int(written)
    except ValueError:  # over 4,300 digits, which int() refuses; httptools took it, so it begins with zeros
        raise BadRequestError("The request's Content-Length has too many digits.") from None
