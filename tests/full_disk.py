"""A disk with no room: a small file system in memory, which only root may mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")


@contextmanager
def small_disk(folder: Path, room: int) -> Iterator[Path]:
    """Mount one with so many bytes of room on a new folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """Mount one that takes the names of files, and not a byte."""
    with small_disk(folder, 64 << 10) as disk:
        with (disk / "filling").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 10)):
                    pass
            except OSError:
                yield disk
                return
        raise AssertionError("the disk has more room than it was given")
