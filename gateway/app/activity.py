"""The activity of the processes behind an endpoint on this machine: their CPU time and the use of their GPUs.

Activity proves no progress: a hung collective spins on both. It only earns a silent engine more time.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from engine.nvml import gpus, holders
from gateway.config.fields import UNIX

BUSY = 0.1
"""CPUs, or share of a GPU, from which an engine counts as at work. Answering probes costs vLLM 0.01 CPUs."""
WINDOW = 10.0
"""Seconds over which looks are compared: a shorter span may fall into a pause."""
LOOK_TIMEOUT = 1.0
"""Seconds for a look. The driver of a GPU that is stuck may keep whoever asks it waiting for ever."""
_LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TICKS = os.sysconf("SC_CLK_TCK")


class Activity:
    """Looks at the processes of one endpoint: the one that listens and all its descendants.

    Args:
        address: host and port, or unix socket.
        clock: monotonic seconds.
        proc: the kernel's process folder (`/proc`).
    """

    def __init__(self, address: str, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        host, _, port = address.rpartition(":")
        self._find: Callable[[], int | None] | None = None
        if address.startswith(UNIX):
            self._find = partial(_at_socket, address.removeprefix(UNIX))
        elif host in _LOCAL:
            self._find = partial(_at_port, int(port))
        self._clock = clock
        self._proc = proc
        self._pid: int | None = None
        self._looking: asyncio.Future[bool | None] | None = None
        """A look that has begun."""
        self._looks: deque[tuple[float, float]] = deque()
        """Time of each look, and the processes' CPU seconds by then."""

    async def look(self) -> bool | None:
        """Whether they computed lately; None if they cannot be seen, or not in time, or for the first time."""
        if self._find is None:
            return None
        if self._looking is None:
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._look, self._find))
        done, _ = await asyncio.wait({self._looking}, timeout=LOOK_TIMEOUT)
        if not done:
            return None
        looked, self._looking = self._looking, None
        return looked.result()

    def _look(self, find: Callable[[], int | None]) -> bool | None:
        seen = dict(_processes(self._proc))
        if self._pid not in seen:
            self._pid = find()
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


def _at_port(port: int) -> int | None:
    """The process that listens there."""
    from engine.diagnosis.look import listener  # noqa: PLC0415 - few gateways have a silent engine beside them

    return None if (found := listener(port)) is None else found.pid


def _at_socket(path: str) -> int | None:
    """The process that listens there."""
    from engine.diagnosis.look import unix_listener  # noqa: PLC0415 - few gateways have a silent engine beside them

    return None if (found := unix_listener(path)) is None else found.pid


def _processes(proc: Path) -> Iterator[tuple[int, tuple[int, float]]]:
    """Each process's id, with its parent's id and its CPU seconds; nothing if the folder is missing."""
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.name), (int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS)


def _family(pid: int, parents: dict[int, int]) -> frozenset[int]:
    """A process and all its descendants."""
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
