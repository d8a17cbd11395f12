"""The end of a job whose caller has left: a thread's job looks for it, a process's job is interrupted by a signal.

A job also ends when it takes too long: some chat templates take the square of a conversation's length. What is too long
for a thread may go on in a process.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gateway.wire.request import InvalidRequestError

R = TypeVar("R")

_LOOKS = 30
"""Looks at a job within its limit, so that it overruns the limit by 1/30 at most."""


class CallerLeftError(BaseException):
    """Nobody waits for the job any more. Like a cancellation, it is nothing that ordinary handlers should catch."""


class TooMuchHereError(BaseException):
    """The job takes too long for this thread, or will by the text that it is about to handle."""


class _OverdueError(BaseException):
    """The job takes too long."""


class _Thread(threading.local):
    left = threading.Event()
    """Set once the caller of this thread's job has left."""
    until = math.inf
    """CPU seconds of this thread at which its job takes too long for it."""
    foresees = True
    """Whether it leaves to others what will take too long: a process may, and counts what is cheap after all."""


class _Process:
    job = 0
    """Number of its jobs so far."""
    open = False
    """Whether a signal may end what this process is doing."""
    left = False
    """Whether the caller of its job has left."""
    until = 0.0
    """CPU seconds of this process at which its job takes too long."""
    signals = -1
    """Where each signal of this process comes as a byte, for another thread."""


_thread = _Thread()
_process = _Process()


def follow(left: threading.Event) -> None:
    """Have the jobs of this thread end once that is set."""
    _thread.left = left


class limited:  # noqa: N801  # used like a function
    """Let what this thread does inside take so much CPU time.

    `foresees`: whether it ends already if it will take more, by a bound.

    Raises:
        TooMuchHereError: it is more, as far as the job looked.
    """

    __slots__ = ("_foresees", "_seconds")

    def __init__(self, seconds: float, *, foresees: bool = True) -> None:
        self._seconds = seconds
        self._foresees = foresees

    def __enter__(self) -> None:
        _thread.until, _thread.foresees = time.thread_time() + self._seconds, self._foresees

    def __exit__(self, *_: object) -> None:
        _thread.until = math.inf


def look(seconds: float = 0.0) -> None:
    """End this thread's job if its caller has left, or if it is too much for this thread.

    Args:
        seconds: CPU time that it is about to take at most, in compiled code that cannot look.

    Raises:
        CallerLeftError: its caller has left.
        TooMuchHereError: see `limited`.
    """
    if _thread.left.is_set():
        raise CallerLeftError
    if time.thread_time() + (seconds if _thread.foresees else 0.0) >= _thread.until:
        raise TooMuchHereError


def too_much(longest: float) -> InvalidRequestError:
    """The refusal of a prompt that takes more CPU seconds than this."""
    return InvalidRequestError(f"The prompt is too much to count: that took over {longest:.1f} s.")


def interruptible(call: Callable[[], R], longest: float) -> R:
    """Do a job that a signal may end; for the main thread of a process that called `listen`.

    Raises:
        CallerLeftError: it was ended.
        InvalidRequestError: it took more CPU seconds than this, or more memory than the process may have.
    """
    signals()  # they were for the last one
    _process.job += 1
    _process.left = False
    _process.until = time.process_time() + longest
    try:
        _process.open = True
        # Again and again: an exception that comes while an object is finalised is lost.
        signal.setitimer(signal.ITIMER_PROF, longest / _LOOKS, longest / _LOOKS)
        return call()
    except _OverdueError:
        _process.open = False  # before any call: the next signal may be here
        raise too_much(longest) from None
    except MemoryError:
        raise InvalidRequestError("The prompt is too much to count: that took too much memory.") from None
    finally:
        _process.open = False
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def whole() -> Iterator[None]:
    """Let nothing end what is done inside, only after it: half done, it would harm later jobs.

    Its time is not the job's.
    """
    before, _process.open = _process.open, False
    # The thread's time first: while a timer runs, only that brings the process's up to date.
    began_here, began = time.thread_time(), time.process_time()
    try:
        yield
    finally:
        _thread.until += time.thread_time() - began_here
        if before:
            _process.until += time.process_time() - began
        _process.open = before
    _look_at_job()


def present() -> int | None:
    """The number of this process's job if a signal may end it, for another thread."""
    return _process.job if _process.open else None


def overdue() -> bool:
    """Whether this process's job takes too long, for another thread."""
    return _process.open and time.process_time() >= _process.until


def signals() -> bytes:
    """The numbers of the signals that came since the last call, or the begin of this process's job."""
    try:
        return os.read(_process.signals, 4096) if _process.signals >= 0 else b""
    except BlockingIOError:
        return b""


def listen(number: signal.Signals) -> int:
    """Have this signal end the job of this process, if it does one that may be ended.

    Returns a descriptor that can be read when a signal came: it is for one who waits, and `signals` reads it.
    """
    _process.signals, woken = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(number, _end)
    signal.signal(signal.SIGPROF, _look_at_job)
    return _process.signals


def _end(*_: object) -> None:
    _process.left = True
    _look_at_job()


def _look_at_job(*_: object) -> None:
    if not _process.open:
        return
    if _process.left:
        raise CallerLeftError
    if time.process_time() >= _process.until:
        raise _OverdueError
