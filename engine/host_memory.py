"""What this machine, or the container kvgate runs in, has of memory to give."""

import contextlib
import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that programs can get without swapping, as the kernel estimates it; files are its own."""
    (available,) = re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    free = int(available) * 1024
    with contextlib.suppress(OSError, ValueError, KeyError):  # no control group, or one without a limit
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        # The page cache counts as used and is given back.
        cached = int(dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())["inactive_file"])
        free = min(free, limit - used + cached)
    return free
