"""The text that a template makes: looked at while it grows, and given up where no model could take it.

A template may repeat a part of a request for each of its messages: a special token that the client names, all tools,
the numbers of calls with one id. Of 1 MB that made 15 GB.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.tokens.encoding_time import PER_BYTE
from gateway.tokens.interruption import look

_LOOKED_AT = 64
"""Pieces between two looks at the job."""


class OutputTooLongError(Exception):
    """The text has more characters than it may have; it was given up. `characters`: those so far."""

    def __init__(self, characters: int) -> None:
        super().__init__(characters)
        self.characters = characters


class _Bound(threading.local):
    most = sys.maxsize


_bound = _Bound()


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Let templates that this thread renders inside make so many characters at most, each macro and the whole text.

    Raises:
        OutputTooLongError: one makes more.
    """
    before, _bound.most = _bound.most, most
    try:
        yield
    finally:
        _bound.most = before


def _joined(pieces: Iterable[str]) -> str:
    """What Jinja's own `concat` does, within the bound."""
    most, size, kept = _bound.most, 0, list[str]()
    for number, piece in enumerate(pieces):
        size += len(piece)
        if size > most:
            raise OutputTooLongError(size)
        kept.append(piece)
        if number % _LOOKED_AT == 0:
            look(PER_BYTE * size)
    look(PER_BYTE * size)
    return "".join(kept)


# The environment is of transformers' making, out of this class.
ImmutableSandboxedEnvironment.concat = staticmethod(_joined)
