"""The end of a job whose caller has left: a thread's job looks for it, a process's job is interrupted by a signal.

A process's job also ends when it takes too long: some chat templates take the square of a conversation's length.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gateway.wire.request import InvalidRequestError

R = TypeVar("R")

LONGEST = 30.0
"""CPU seconds that a process may take for a job. A prompt of a million tokens takes a few."""


class CallerLeftError(BaseException):
    """Nobody waits for the job any more. Like a cancellation, it is nothing that ordinary handlers should catch."""


class _OverdueError(BaseException):
    """The job takes too long."""


class _Thread(threading.local):
    left = threading.Event()
    """Set once the caller of this thread's job has left."""


_thread = _Thread()
_open = False
"""Whether a signal may end what this process is doing."""


def follow(left: threading.Event) -> None:
    """Have the jobs of this thread end once that is set."""
    _thread.left = left


def look() -> None:
    """End this thread's job if its caller has left.

    Raises:
        CallerLeftError: it has.
    """
    if _thread.left.is_set():
        raise CallerLeftError


def interruptible(call: Callable[[], R]) -> R:
    """Do a job that a signal may end; for the main thread of a process that called `listen`.

    Raises:
        CallerLeftError: it was ended.
        InvalidRequestError: it took more than `LONGEST`.
    """
    global _open  # noqa: PLW0603  # a signal has no other way
    _open = True
    _time(LONGEST)
    try:
        return call()
    except _OverdueError:
        raise InvalidRequestError(f"The prompt is too much to count: that took over {LONGEST:g} s.") from None
    finally:
        _open = False
        _time(0)


@contextmanager
def whole() -> Iterator[None]:
    """Let no signal end what is done inside: half done, it would harm later jobs. The job's time begins after it."""
    global _open  # noqa: PLW0603
    before, _open = _open, False
    try:
        yield
    finally:
        if before:
            _time(LONGEST)
        _open = before


def listen(number: signal.Signals) -> None:
    """Have this signal end the job of this process, if it does one that may be ended."""
    signal.signal(number, _end)
    signal.signal(signal.SIGPROF, _overdue)


def _time(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _end(*_: object) -> None:
    if _open:
        raise CallerLeftError


def _overdue(*_: object) -> None:
    global _open  # noqa: PLW0603
    if _open:
        _open = False
        raise _OverdueError
