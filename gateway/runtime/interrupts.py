"""Signals from the first moment on: Ctrl-C, and SIGHUP for a serving process.

The first Ctrl-C prints a line and a second ends everything at once. The exit code is 130.

`end_at_once` is the handler from the first moment on (`__main__.py`). Once there is something to wait for, `Stop`
handles the first signal and leaves the second to it. This module imports nearly nothing, since Ctrl-C during an earlier
import ends in a traceback.
"""

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def end_at_once(number: int, _frame: object = None, said: bytes = b"interrupted") -> None:
    """End at once, with a shell's exit code for a signal. Programs under a guard end too."""
    if os.isatty(2):
        os.write(2, b"\rkvgate: %s\n" % said)
    os._exit(128 + number)


class HangUps:
    """Keeps an early SIGHUP for later: `systemctl reload` may send it before anything can reread the settings.

    In a terminal, SIGHUP ends the process as usual.
    """

    def __init__(self) -> None:
        self._heard = False

    def listen(self) -> None:
        """Keep the signal from now on, until another handler takes over."""
        if not has_terminal():
            signal.signal(signal.SIGHUP, lambda *_: self.hear())

    def hear(self) -> None:
        """Note that it came."""
        self._heard = True

    def take(self) -> bool:
        """Whether one came. Asking clears it."""
        heard, self._heard = self._heard, False
        return heard


early = HangUps()
"""The early SIGHUPs of this process."""


def has_terminal() -> bool:
    """Whether closing a terminal can end this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Stop:
    """A stop on SIGTERM or Ctrl-C.

    Args:
        event: set by the first signal. A further one ends the process at once.
        tell: called at the first signal; says what kvgate waits for.
    """

    def __init__(self, event: "asyncio.Event", tell: Callable[[], None]) -> None:
        self.event = event
        self._tell = tell
        self._by = 0

    @property
    def code(self) -> int:
        """Exit code of a process that shut down in order: 130 after Ctrl-C, as for any other program."""
        return 128 + signal.SIGINT if self._by == signal.SIGINT else 0

    def listen(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Handle the signals from now on, even after the loop has ended."""

        def asked(number: int, _frame: object) -> None:
            if loop.is_closed():  # nothing is left to wait for
                end_at_once(number)
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
