"""Files that only their owner may read: they tell who asked how much, or hold what an engine prints."""

import os
from pathlib import Path
from typing import BinaryIO, Literal


def open_private(path: Path, mode: Literal["wb", "ab", "ab+"], buffering: int = -1) -> BinaryIO:
    """Open a file, as `Path.open` does. If it is new, only its owner may read it.

    Raises:
        OSError: it cannot be opened.
    """
    return open(path, mode, buffering, opener=_private)  # `Path.open` takes no opener


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
