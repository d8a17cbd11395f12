"""PURE. The engine's token counts in an answer that is passed on piece by piece, and of any shape."""

import re

import msgspec

from gateway.wire.request import Api
from gateway.wire.usage import Usage, UsageFields

_NEAR = 4 * 2**10
"""Most bytes of the counts."""
_MARKS = (b'"usage":', b'"billed_units":')
_TRIES = 8
"""Most marks in a piece at which the counts are looked for: some stand before a null."""
_COUNTS = re.compile(rb'"(?:usage|billed_units)":[ \t\r\n]*(\{[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*\})')
_decode = msgspec.json.Decoder(UsageFields).decode


class PassingUsage:
    """Looks for `usage`, wherever an answer has it, and for Cohere's `billed_units`. The last one counts.

    A quote inside a text is escaped, so no text of a client or a model looks like it.
    """

    def __init__(self) -> None:
        self._found: bytes | None = None
        self._last = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        window = self._last + piece
        self._found = next(filter(None, (_last_counts(window, mark) for mark in _MARKS)), self._found)
        self._last = window[-_NEAR:]

    def read(self, api: Api | None = None) -> Usage | None:
        """The counts; None if there are none, or they are impossible.

        `api`: of the answer, if it was generated.
        """
        if self._found is None:
            return None
        try:
            fields = _decode(self._found)
        except msgspec.DecodeError:
            return None
        return fields.read_any() if api is None else fields.read(api)


def _last_counts(window: bytes, mark: bytes) -> bytes | None:
    at = len(window)
    for _ in range(_TRIES):
        at = window.rfind(mark, 0, at)
        if at < 0:
            break
        if counts := _COUNTS.match(window, at, at + _NEAR):
            return counts[1]
    return None
