"""The connections of each front of one machine, in memory that they share."""

import contextlib
import fcntl
import mmap
import os
import struct
from pathlib import Path

_SLOT = struct.Struct("=II")
"""A front's process and its connections. A process of 0 has left."""
_MOST = 64
"""Fronts, those on their way out included."""


class Loads:
    """A table of fronts with one line for this process, in a file that only its user can open.

    Args:
        path: of the file, the same for all fronts; made if missing.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, _MOST * _SLOT.size)
            self._table = mmap.mmap(descriptor, _MOST * _SLOT.size)
            free = (slot for slot, (process, _) in enumerate(_SLOT.iter_unpack(self._table)) if not _lives(process))
            self._mine = next(free, _MOST - 1)
            self.note(0)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # the mapping keeps the file open
            os.close(descriptor)

    def note(self, connections: int) -> None:
        """Note how many this process has."""
        _SLOT.pack_into(self._table, self._mine * _SLOT.size, os.getpid(), connections)

    def fewer_elsewhere(self, connections: int) -> bool:
        """Whether another front that lives has fewer than this."""
        for slot, (process, there) in enumerate(_SLOT.iter_unpack(self._table)):
            if slot != self._mine and process and there < connections and _lives(process):
                return True
        return False

    def leave(self) -> None:
        """Take this process out: it accepts no more."""
        _SLOT.pack_into(self._table, self._mine * _SLOT.size, 0, 0)


def _lives(process: int) -> bool:
    if not process:
        return False
    with contextlib.suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
