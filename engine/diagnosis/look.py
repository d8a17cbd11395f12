"""The look at this machine: GPUs and their processes, memory, the hub's cache, ports, and the kernel's kills."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from engine.arguments import Arguments
from engine.diagnosis import way
from engine.diagnosis.machine import Cache, Card, Download, Holder, Listener, Machine, who_holds
from engine.diagnosis.sign import Diagnosis, Kind
from engine.gpu import Gpu
from engine.host_memory import free_bytes, physical_bytes, total_bytes
from engine.nvml import gpus, holders
from engine.plan.hub import HubSettings

_CGROUP = Path("/sys/fs/cgroup")
_KILLED = re.compile(
    rb"(?:^\d+,\d+,(\d+),[^;\n]*;)?((?:Out of memory|Memory cgroup out of memory): Kill\w* process [^\n]*)",
    re.MULTILINE,
)
"""A line of /dev/kmsg: microseconds since the machine started, and the message."""
_LATELY = 60.0
"""Seconds for which a kill may explain the end of one of our programs."""
_KVGATE = re.compile(rb"(?:^|[/\0])kvgate\0|\0gateway\.cli\0")
_ENGINE = re.compile(
    rb"^(?!.*guard\.py).*(?:-m\0vllm\.entrypoints|/vllm\0serve|llama-server\0|-m\0engine\.llama\.server)", re.DOTALL
)
_UNIX_PATH, _ACCEPTS = 7, 0x10000
"""Of /proc/net/unix: the column of the path, and the flag of a socket that listens."""
_KERNEL_LOG = 2**20
"""Most bytes of it to read."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EOPNOTSUPP}


def look(environ: Mapping[str, str], ports: tuple[int, ...], engine: str, now: float | None = None) -> Machine:
    """See what an engine would find on this machine.

    Args:
        environ: Holds CUDA_VISIBLE_DEVICES and the hub's variables.
        ports: Ports to look for listeners on.
        engine: Folder of the engine's environment; empty if there is none.
        now: Seconds since the epoch; by default the clock's.
    """
    kills, line = killed_for_memory()
    return Machine(
        cards=cards(),
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
        memory=total_bytes(_CGROUP),
        available=free_bytes(cgroup=_CGROUP),
        limited=total_bytes(_CGROUP) < physical_bytes(),
        oom_kills=kills,
        killed=line,
        shared_memory=_size(Path("/dev/shm")),  # noqa: S108 - its size is asked for
        cache=hub_cache(HubSettings.from_environ(environ).cache, time.time() if now is None else now),
        listeners=tuple(found for port in ports if (found := listener(port)) is not None),
        engine=engine,
    )


def corroborated(found: Diagnosis) -> Diagnosis:
    """The diagnosis of a program that ran on this machine, with the machine's findings added to its evidence."""
    more = ""
    if found.kind is Kind.MEMORY:
        more = who_holds(cards(), found.facts)
    elif found.kind is Kind.DEATH:
        kills, line = killed_for_memory(max(0.0, time.monotonic() - _LATELY))
        more = line or (f"{kills} processes were killed here for memory so far" if kills else "")
    return _beside(found, more)


def on_its_way(found: Diagnosis, environ: Mapping[str, str]) -> Diagnosis:
    """A client's diagnosis, with this machine's findings on the way to its server added. Any other stays unchanged.

    Args:
        found: The diagnosis from the client's log.
        environ: The client's environment, for its proxies.
    """
    if found.kind is not Kind.CLIENT:
        return found
    there = way_to(found.facts.get("host", ""), int(found.facts.get("port") or 0) or None, environ)
    return _beside(replace(found, remedy=way.remedy(there) or found.remedy), way.seen(there))


def _beside(found: Diagnosis, more: str) -> Diagnosis:
    return replace(found, evidence=f"{found.evidence} [{more}]".strip()) if more else found


def cards() -> tuple[Card, ...]:
    """Every GPU with the processes on it; none without a driver."""
    return tuple(_card(gpu) for gpu in gpus())


def _card(gpu: Gpu) -> Card:
    found = tuple(Holder(held.pid, process_name(held.pid), held.used_bytes) for held in holders(gpu.index))
    return Card(gpu.index, gpu.name, gpu.total_bytes, gpu.free_bytes, found)


def process_name(pid: int) -> str:
    """The short name of a process: its command line may hold secrets."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process of another container"


def killed_for_memory(since: float = 0.0) -> tuple[int, str]:
    """How many processes the kernel killed for memory in this control group, and its last line about one, if any.

    `since`: Ignore lines from before this time, in seconds after the machine's start.
    """
    kills = 0
    with contextlib.suppress(OSError, ValueError):
        events = dict(line.split() for line in (_CGROUP / "memory.events").read_text().splitlines())
        kills = int(events.get("oom_kill", 0))
    lines = [line for at, line in _KILLED.findall(_kernel_log()) if float(at or 0) / 1e6 >= since]
    return kills, lines[-1].decode(errors="replace")[:200] if lines else ""


def _kernel_log() -> bytes:
    """The kernel's messages, as far as this user may read them."""
    said = b""
    with contextlib.suppress(OSError):
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        try:
            while len(said) < _KERNEL_LOG:
                said += os.read(log, 8192)
        finally:
            os.close(log)
    return said


def hub_cache(folder: Path, now: float) -> Cache:
    """The faults in the hub's cache."""
    downloads = []
    for path in folder.glob("*/blobs/*.incomplete"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            downloads.append(Download(path, stat.st_size, now - stat.st_mtime))
    broken = [path for path in folder.glob("*/snapshots/*/**/*") if path.is_symlink() and not path.exists()]
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(nearest).free
    return Cache(folder, free, tuple(downloads), tuple(_unlockable(folder)), tuple(broken))


def _unlockable(folder: Path) -> Iterator[Path]:
    """Lock files on a disk that cannot lock. On one that can, a leftover file is held by nobody."""
    for path in (folder / ".locks").glob("*/*.lock"):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                yield path


def listener(port: int) -> Listener | None:
    """The process that listens on a TCP port of this machine, if any."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                local, state, inode = (line.split()[column] for column in (1, 3, 9))
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{inode}]")
    return _holder(inodes, port)


def unix_listener(path: str) -> Listener | None:
    """The process that listens on a unix socket, if any."""
    inodes = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if len(fields) > _UNIX_PATH and fields[_UNIX_PATH] == path and int(fields[3], 16) & _ACCEPTS:
                inodes.add(f"socket:[{fields[6]}]")
    return _holder(inodes, 0)


def _holder(inodes: set[str], port: int) -> Listener | None:
    """The process that has one of these sockets open."""
    if not inodes:
        return None
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(OSError):
            if any(str(link.readlink()) in inodes for link in Path(f"/proc/{pid}/fd").iterdir()):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                return Listener(port, pid, process_name(pid), bool(_KVGATE.search(command)))
    return Listener(port)


def way_to(host: str, port: int | None, environ: Mapping[str, str]) -> way.Way:
    """The way from a client of this machine to its server, as far as this machine shows it.

    Args:
        host: The server's host; empty if unknown, which means this machine.
        port: The server's port, if known.
        environ: The client's environment.
    """
    ports = way.ports(host, port)
    listeners = tuple(found for each in ports if (found := listener(each)) is not None)
    open_ports = {found.port for found in listeners}
    return way.Way(
        host,
        port,
        ports,
        listeners,
        tuple((each, engine) for each in ports if each not in open_ports for engine in starting(each)),
        way.proxy_between(host or "localhost", environ),
    )


def starting(port: int) -> Iterator[str]:
    """Engines of this machine that will listen on this port."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                words = command.decode(errors="replace").split("\0")
                if _ENGINE.search(command) and (Arguments.parse(words).integer("--port") or way.VLLM_PORT) == port:
                    yield f"process {entry.name} ({process_name(int(entry.name))})"


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None
