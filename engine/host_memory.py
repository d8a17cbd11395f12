"""The memory of this machine, or of the container kvgate runs in: total and free."""

import contextlib
import os
import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def physical_bytes() -> int:
    """Return the memory of the machine, ignoring a container's limit."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def total_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the memory that programs here may use: the control group's limit, if it has one."""
    limit = _limit(cgroup)
    return physical_bytes() if limit is None else min(physical_bytes(), limit)


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that programs can get without swapping, by the kernel's estimate."""
    (available,) = re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    free = int(available) * 1024
    limit = _limit(cgroup)
    if limit is not None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            used = int((cgroup / "memory.current").read_text())
            # The page cache counts as used, but the kernel gives it back.
            stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
            free = min(free, limit - used + int(stat["inactive_file"]))
    return free


def _limit(cgroup: Path) -> int | None:
    """The control group's limit; None without a group or a limit (`max`)."""
    try:
        return int((cgroup / "memory.max").read_text())
    except (OSError, ValueError):
        return None
