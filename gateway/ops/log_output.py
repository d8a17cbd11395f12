"""The stream that log lines are written to, without ever waiting for whoever reads it."""

import asyncio
import contextlib
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

MOST_HELD = 2**20
"""Most characters that wait for a reader that stands still. What comes beyond is lost."""
_AGAIN = 0.1
"""Seconds after which what waits is tried again in an event loop, if no other line comes."""
_PIECE = select.PIPE_BUF // 4
"""Characters that are surely written in one piece: each has 4 bytes at most."""


class LogOutput:
    """Writes to a stream what it takes at once, and keeps the rest for later.

    A terminal may be stopped, and a pager or a log collector may stand still: a write would wait for them, and all
    requests with it. What cannot be written for another reason is lost, as on a full disk.

    Args:
        stream: pieces of up to `PIPE_BUF` bytes are written to it whole, if it is no terminal.
        lost: the line that tells of so many that were lost.
    """

    def __init__(self, stream: TextIO, lost: Callable[[int], str]) -> None:
        self._stream = stream
        self._lost_line = lost
        self._lost = 0
        self._held: deque[str] = deque()
        self._size = 0
        """Characters of what is held."""
        self._lock = threading.RLock()
        self._again: asyncio.TimerHandle | None = None
        self._poll: select.poll | None = None
        self._unwaiting: int | None = None
        """A descriptor of the same pipe or terminal that never waits. The stream's own is shared with other processes,
        which may fill it after we were told that it takes a piece; and a terminal that takes a byte may take no more.
        """
        with contextlib.suppress(OSError, ValueError):  # `ValueError`: the stream is closed, or no file
            descriptor = stream.fileno()
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)
            if os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
                self._unwaiting = os.open(f"/proc/self/fd/{descriptor}", flags)

    def write(self, text: str) -> int:
        """Write one or several lines, or keep them."""
        with self._lock:
            self._drain(0.0)
            if self._held and self._size + len(text) > MOST_HELD:
                self._lost += text.count("\n")
            else:
                self._held += _pieces(text)
                self._size += len(text)
                self._drain(0.0)
            self._try_again()
        return len(text)

    def flush(self) -> None:
        """Nothing to do: what can be written is."""

    def drain(self, seconds: float) -> None:
        """Write what is held, as far as its reader takes it within so many seconds."""
        with self._lock:
            self._drain(seconds)

    def _drain(self, seconds: float) -> None:
        if not self._held:
            return
        end = time.monotonic() + seconds
        while self._held and self._takes(max(0.0, end - time.monotonic())):
            piece = self._held.popleft()
            left = self._put(piece)
            self._size -= len(piece) - len(left)
            if left:
                self._held.appendleft(left)
            if left == piece:
                return
            if not self._held and self._lost:
                line, self._lost = self._lost_line(self._lost) + "\n", 0
                self._held += _pieces(line)
                self._size += len(line)

    def _takes(self, seconds: float) -> bool:
        """Whether the stream takes a piece without delay, or refuses it. A closed pipe refuses it."""
        return self._poll is None or bool(self._poll.poll(1000 * seconds))

    def _put(self, piece: str) -> str:
        """Write a piece; returns what was not taken of it."""
        try:
            if self._unwaiting is not None:
                data = piece.encode(errors="replace")
                return data[os.write(self._unwaiting, data) :].decode(errors="ignore")
            self._stream.write(piece)
            self._stream.flush()
        except BlockingIOError:
            return "" if self._unwaiting is None else piece
        except (OSError, ValueError):
            return ""
        return ""

    def _try_again(self) -> None:
        if self._held and self._again is None:
            with contextlib.suppress(RuntimeError):  # without an event loop, the next line tries
                self._again = asyncio.get_running_loop().call_later(_AGAIN, self._later)

    def _later(self) -> None:
        with self._lock:
            self._again = None
            self._drain(0.0)
            self._try_again()


def _pieces(text: str) -> list[str]:
    if len(text) <= _PIECE or len(text.encode(errors="replace")) <= select.PIPE_BUF:
        return [text]
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
