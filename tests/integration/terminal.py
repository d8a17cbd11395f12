"""A program on a terminal of its own, with somebody who reads what comes and presses Ctrl-C."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.clock import unhindered

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = 120.0


class Terminal:
    """What a program shows, and its keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._shown = b""

    @property
    def text(self) -> str:
        """All that was shown, without colors."""
        return _ESCAPE.sub("", self._shown.decode(errors="replace")).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """The lines as a person sees them: a carriage return goes back over what the line has."""
        return [line.rpartition("\r")[2] for line in self.text.removesuffix("\n").split("\n")]

    def until(self, pattern: str) -> re.Match[str]:
        """Read until this was shown."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"{pattern} was not shown:\n{self.text}"
            assert self._read(0.1) or self.process.poll() is None, f"it ended before {pattern}:\n{self.text}"
        return found

    def wait_for(self, seconds: float) -> None:
        """Read for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self.process.poll() is None:
            self._read(left)

    def press_ctrl_c(self) -> None:
        os.write(self._descriptor, b"\x03")

    def ended(self, within: float = PATIENCE) -> int:
        """Its exit code; it has to end in so many seconds."""
        deadline = unhindered() + within
        while self.process.poll() is None:
            assert unhindered() < deadline, f"it runs on:\n{self.text}"
            self._read(0.05)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._descriptor, 65_536)
        except OSError:  # the last program on it has ended
            piece = b""
        self._shown += piece
        return bool(piece)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def kvgate(*arguments: str | Path, columns: int = 100, environ: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """`kvgate ARGUMENTS` on a terminal; killed at the end of the block if it still runs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "NO_COLOR": "", "COLUMNS": str(columns), **(environ or {})},
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509  # it has no threads yet
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(ours)
