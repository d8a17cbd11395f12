"""The cores of this machine that programs here may compute on, and what they can."""

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
_WIDE = frozenset({"avx512f", "amx_tile"})


def cores(topology: Path = _TOPOLOGY, cgroup: Path = _CGROUP) -> int:
    """Return the number of cores: hardware threads of one core count once, and a control group's quota bounds it.

    More computing threads than these wait for each other, which costs llama-server more than it gains.
    """
    siblings = set()
    for number in os.sched_getaffinity(0):
        try:
            siblings.add((topology / f"cpu{number}" / "topology" / "thread_siblings_list").read_text())
        except OSError:
            siblings.add(str(number))
    return max(1, min(len(siblings), _quota(cgroup) or len(siblings)))


def are_wide(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether they have AVX-512 or AMX."""
    try:
        said = cpuinfo.read_text()
    except OSError:
        return False
    return any(not _WIDE.isdisjoint(line.split()) for line in said.splitlines() if line.startswith("flags"))


def _quota(cgroup: Path) -> int | None:
    """Whole processors that the control group may use; None without a group or a limit."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
        return -(-int(limit) // int(period))
    except (OSError, ValueError):
        return None
