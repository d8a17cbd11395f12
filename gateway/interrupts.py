"""Ctrl-C: the first is answered with a line, a second ends everything at once, and the exit code is 130.

`end_at_once` is the handler from the first moment on (`__main__.py`), until there is something to wait for: then
`Stop` takes the first signal, and leaves the second to it. It imports nearly nothing, as whatever is imported before
can only be interrupted with a traceback.
"""

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def end_at_once(number: int, _frame: object = None, said: bytes = b"interrupted") -> None:
    """End here and now, with the exit code that a shell gives a signal. What runs under a guard ends with it."""
    if os.isatty(2):
        os.write(2, b"\rkvgate: %s\n" % said)
    os._exit(128 + number)


class Stop:
    """A stop that SIGTERM or Ctrl-C asks for.

    Args:
        event: set by the first of them. From then on another one ends the process at once.
        tell: called with the first; says what is waited for.
    """

    def __init__(self, event: "asyncio.Event", tell: Callable[[], None]) -> None:
        self.event = event
        self._tell = tell
        self._by = 0

    @property
    def code(self) -> int:
        """Exit code of a process that ended in order: 130 after Ctrl-C, as for any other program."""
        return 128 + signal.SIGINT if self._by == signal.SIGINT else 0

    def listen(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Take the signals from now on, also when the loop has ended."""

        def asked(number: int, _frame: object) -> None:
            self._by = number
            if number == signal.SIGINT and os.isatty(2):
                os.write(2, b"\r")  # over the terminal's own ^C
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, end_at_once)
            loop.call_soon_threadsafe(self._stop)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, asked)

    def _stop(self) -> None:
        self.event.set()
        self._tell()
