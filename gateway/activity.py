"""Whether the processes behind an endpoint of this machine compute: by their CPU time, and the use of their GPUs.

It proves nothing: a collective that hangs spins on both. It only earns an engine that is silent more time.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.diagnosis.look import listener
from engine.gpu import gpus, holders

BUSY = 0.1
"""CPUs, or share of a GPU, from which on an engine is at work. Answering probes takes vLLM 0.01 CPUs."""
WINDOW = 10.0
"""Seconds that a look reaches back, to looks before it: one in between may fall into a pause."""
_LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TICKS = os.sysconf("SC_CLK_TCK")


class Activity:
    """Looks at the processes of one endpoint, all that descend from the one that listens.

    Args:
        address: host and port.
        clock: monotonic seconds.
        proc: where the kernel shows processes.
    """

    def __init__(self, address: str, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._clock = clock
        self._proc = proc
        self._pid: int | None = None
        self._looks: deque[tuple[float, float]] = deque()
        """When a look was, and the CPU seconds of the processes by then."""

    async def look(self) -> bool | None:
        """Whether they have computed of late; None where they cannot be seen, or were not until now."""
        return await asyncio.to_thread(self._look) if self._host in _LOCAL else None

    def _look(self) -> bool | None:
        seen = dict(_processes(self._proc))
        if self._pid not in seen:
            found = listener(int(self._port))
            self._pid = found.pid if found is not None else None
            self._looks.clear()
        if self._pid is None or self._pid not in seen or self._pid == os.getpid():
            return None
        family = _family(self._pid, {pid: parent for pid, (parent, _) in seen.items()})
        now, used = self._clock(), sum(seen[pid][1] for pid in family)
        while self._looks and self._looks[0][0] < now - WINDOW:
            self._looks.popleft()
        self._looks.append((now, used))
        since, had = self._looks[0]
        return None if since == now else used - had >= BUSY * (now - since) or _on_gpu(family)


def _processes(proc: Path) -> Iterator[tuple[int, tuple[int, float]]]:
    """Each process's id, with its parent's and the CPU seconds it has used; none where there is no such folder."""
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.name), (int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS)


def _family(pid: int, parents: dict[int, int]) -> frozenset[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found, todo = set[int](), [pid]
    while todo:
        found.add(one := todo.pop())
        todo += children.get(one, [])
    return frozenset(found)


def _on_gpu(family: frozenset[int]) -> bool:
    return any(
        gpu.busy is not None and gpu.busy >= BUSY and any(holder.pid in family for holder in holders(gpu.index))
        for gpu in gpus()
    )
