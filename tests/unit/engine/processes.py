"""What tests ask about processes."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.until import PATIENCE


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they did."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = entry.read_text().partition(" ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(number)] = int(rest.rpartition(")")[2].split()[1])
    found, left = [], [pid]
    while left:
        parent = left.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        left += children
    return found


def eventually(condition: Callable[[], bool], bound: float = PATIENCE) -> bool:
    """Whether the condition comes true within `bound` seconds."""
    deadline = time.monotonic() + bound
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False
