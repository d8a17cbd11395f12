"""A unix socket to listen on: made with its mode, in the place of one that was left behind, and removed at the end."""

import errno
import os
import socket
import stat
from pathlib import Path


class UnixListening(socket.socket):
    """A bound unix socket, and the file that it made."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._file: tuple[int, int] | None = None
        try:
            _take(path)
            self.bind(str(path))
            path.chmod(mode)  # nobody connects before it listens
            self._file = _identity(path)
        except BaseException:
            self.close()
            raise

    def remove(self) -> None:
        """Remove the file, so that nobody finds the socket any more; not one that somebody else put there."""
        if self._file is not None and _identity(self._path) == self._file:
            self._path.unlink(missing_ok=True)
        self._file = None


def _take(path: Path) -> None:
    """Remove a socket on which nobody listens: who was killed leaves it behind.

    Raises:
        OSError: somebody listens there, or it is no socket.
    """
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(0, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:  # so many wait there that it takes no more
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
