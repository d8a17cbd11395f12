"""PURE. The engine's token counts in an answer that is passed on piece by piece, and of any shape."""

import itertools
import re

import msgspec

from gateway.wire.request import Api
from gateway.wire.usage import Usage, UsageFields

_NEAR = 4 * 2**10
"""Most bytes of the counts."""
_MARK = re.compile(rb'"(usage|billed_units)":[ \t\r\n]{0,8}(?=\{)')
_MARK_BYTES = 24
"""Most bytes of a mark and of the brace behind it."""
_MOST_MARKS = 2000
"""Most marks in a piece, as each takes microseconds. No engine writes as many; where they are, nothing counts."""
_COUNTS = re.compile(rb"\{[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*\}")
_UNSTRUCTURED = bytes(set(range(256)) - set(b'"{}[]'))
_decode = msgspec.json.Decoder(UsageFields).decode


class PassingUsage:
    """Looks for `usage` in an answer, and for Cohere's `billed_units` one level below. The last one counts.

    Only at its own depth: an answer may repeat what a client sent, whose tools can have fields of that name.

    Args:
        depth: objects around `usage`.
    """

    def __init__(self, depth: int = 1) -> None:
        self._depths = {b"usage": depth, b"billed_units": depth + 1}
        self._depth = 0
        """Objects and lists around what comes next."""
        self._quoted = False
        """Whether that is inside a string."""
        self._found: bytes | None = None
        self._lost = False
        """Whether the counts, if there are any, cannot be told from what a client sent."""
        self._last = b""
        """What comes next, as far as it is here: too little to tell what it is."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        self._last = self._rest(self._last + piece, _NEAR)

    def read(self, api: Api | None = None) -> Usage | None:
        """The counts; None if there are none, or they are impossible.

        `api`: of the answer, if it was generated.
        """
        self._last = self._rest(self._last, 0)
        if self._found is None or self._lost:
            return None
        try:
            fields = _decode(self._found)
        except msgspec.DecodeError:
            return None
        return fields.read_any() if api is None else fields.read(api)

    def _rest(self, data: bytes, wait: int) -> bytes:
        """Read the next bytes; return those whose meaning is yet to come. `wait`: with how many it will be here."""
        marks = list(itertools.islice(_MARK.finditer(data), _MOST_MARKS + 1))
        self._lost = self._lost or len(marks) > _MOST_MARKS
        if self._lost:
            return b""
        done = 0
        for mark in marks:
            done = self._follow(data, done, mark.start())
            if self._quoted or self._depth != self._depths[mark[1]]:
                continue
            if counts := _COUNTS.match(data, mark.end(), mark.end() + _NEAR):
                self._found = counts[0]
            elif len(data) - mark.end() < wait:
                break
        else:
            done = self._follow(data, done, max(done, len(data) - _MARK_BYTES))
        return data[done:]

    def _follow(self, data: bytes, start: int, end: int) -> int:
        """Note the strings and brackets of a part; return its end, which is before an escape that it would cut."""
        part = data[start:end]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1]
        size = len(part)
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _UNSTRUCTURED).replace(b'""', b"")
        parts = part.split(b'"')
        structure = b"".join(parts[self._quoted :: 2])
        self._quoted ^= len(parts) % 2 == 0
        opened, closed = structure.count(b"{") + structure.count(b"["), structure.count(b"}") + structure.count(b"]")
        self._depth += opened - closed
        return start + size
