"""PURE. The engine's token counts in an answer that is passed on piece by piece, and of any shape."""

import re

import msgspec

from gateway.wire.usage import Usage, UsageFields

_NEAR = 4 * 2**10
"""Bytes at either end of an answer in which its counts are: before a list of results, or behind it."""
_COUNTS = re.compile(rb'"(?:usage|billed_units)"[ \t\r\n]*:[ \t\r\n]*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_decode = msgspec.json.Decoder(UsageFields).decode


class PassingUsage:
    """Looks for `usage` as embeddings, reranking, scores and transcriptions have it, and for Cohere's `billed_units`.

    A quote inside a text is escaped, so no text of a client or a model looks like it.
    """

    def __init__(self) -> None:
        self._first = b""
        self._last = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        if len(self._first) < _NEAR:
            self._first += piece[: _NEAR - len(self._first)]
        self._last = (self._last + piece[-_NEAR:])[-_NEAR:]

    def read(self) -> Usage | None:
        """The counts; None if there are none, or they are impossible."""
        found = [*_COUNTS.findall(self._last)[-1:], *_COUNTS.findall(self._first)[:1]]
        if not found:
            return None
        try:
            return _decode(found[0]).read_any()
        except msgspec.DecodeError:
            return None
