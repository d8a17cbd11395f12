"""Child processes of a measurement: their cores, their readiness, and the CPU time of their process trees."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import aiohttp

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0


@contextlib.contextmanager
def child(argv: Sequence[str], core: int | None, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, on `core` if given. The group ends with the block."""
    pinned = ["taskset", "-c", str(core), *argv] if core is not None else list(argv)
    with log.open("wb") as output:
        process = subprocess.Popen(pinned, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Run on these cores, with all children that begin in the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def split_cores() -> tuple[list[int], int]:
    """The cores for the measured programs, and the last for the clients. On a single core, both use that one."""
    *others, last = sorted(os.sched_getaffinity(0))
    return others or [last], last


async def answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a GET of `url` answers 200.

    Raises:
        RuntimeError: the process ended, or a minute passed. The message has the end of its log.
    """
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT
    async with aiohttp.ClientSession() as session:
        while process.poll() is None and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
    said = log.read_bytes()[-2000:].decode(errors="replace")  # noqa: ASYNC240 - nothing else is left to do
    raise RuntimeError(f"no 200 from {url}; the process behind it says:\n{said}")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its descendants, including those that have ended."""
    return sum(cpu_times(pid))


def cpu_times(pid: int) -> tuple[float, float]:
    """The same in the programs, and in the kernel for them."""
    user = kernel = 0.0
    with contextlib.suppress(FileNotFoundError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user, kernel, of_ended, kernel_of_ended = (int(field) / TICKS for field in fields[11:15])
        user, kernel = user + of_ended, kernel + kernel_of_ended
    below = [cpu_times(descendant) for descendant in children(pid)]
    return user + sum(each for each, _ in below), kernel + sum(each for _, each in below)


def children(pid: int) -> list[int]:
    """Direct children of every thread of a process."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            found += descriptor.readlink().name.startswith("socket:")
    return found
