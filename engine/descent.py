"""The processes below one."""

import contextlib
from pathlib import Path

_PROC = Path("/proc")


def family(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """The ids of a process and of all that it started, and they in turn."""
    children: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything, so the fields are counted from its end.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = {pid}, [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo += below
    return frozenset(found)
