"""PURE. The diagnosis of a machine that is to run an engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.diagnosis.sign import Diagnosis, Kind
from engine.gpu_placement import listed
from engine.plan.budget import UTILIZATION

GIB = 2**30
LITTLE_DISK = 10 * GIB
LITTLE_MEMORY = 2 * GIB
STALE = 600.0
"""Seconds without growth after which a download counts as abandoned."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a GPU's memory. `bytes` is None if the driver does not say, as in a container."""

    pid: int
    name: str
    bytes: int | None

    @property
    def is_engine(self) -> bool:
        """Whether it is an engine, which the memory is for."""
        return self.name.startswith(("VLLM", "vllm", "llama-server"))

    def __str__(self) -> str:
        held = "" if self.bytes is None else f" {self.bytes / GIB:.1f} GiB"
        return f"{self.name} (process {self.pid}){held}"


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU and the processes on it. `index` is NVML's; sizes in bytes."""

    index: int
    name: str
    total: int
    free: int
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Download:
    """An unfinished download in the hub cache."""

    path: Path
    bytes: int
    seconds_still: float
    """Seconds since it last grew."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The hub's cache.

    Attributes:
        folder: Where it is.
        free: Bytes left on its disk; None if unknown.
        downloads: Unfinished downloads.
        locks: Lock files left on a file system that cannot lock. No process holds them; a wait for one never ends.
        broken: Files of a model that point to nothing.
    """

    folder: Path
    free: int | None = None
    downloads: tuple[Download, ...] = ()
    locks: tuple[Path, ...] = ()
    broken: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Listener:
    """The process that listens on a port. `pid` is None for another user's process."""

    port: int
    pid: int | None = None
    name: str = ""
    is_kvgate: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """The observed state of a machine. Sizes in bytes.

    Attributes:
        cards: Its GPUs.
        visible: CUDA_VISIBLE_DEVICES; None if it is not set.
        memory: Its main memory, or the control group's limit.
        available: Free main memory.
        limited: Whether the control group's limit applies.
        oom_kills: Processes that the kernel killed in this control group for memory.
        killed: The kernel's last line about one, if readable.
        shared_memory: Size of /dev/shm; None if there is none.
        cache: The hub's cache.
        listeners: The listeners on the given ports.
        engine: Folder of the engine's environment; empty if kvgate has none yet.
    """

    cards: tuple[Card, ...] = ()
    visible: str | None = None
    memory: int = 0
    available: int = 0
    limited: bool = False
    oom_kills: int = 0
    killed: str = ""
    shared_memory: int | None = None
    cache: Cache = field(default_factory=lambda: Cache(Path()))
    listeners: tuple[Listener, ...] = ()
    engine: str = ""


def judge(machine: Machine) -> Iterator[Diagnosis]:
    """Say what is wrong with a machine."""
    for card in machine.cards:
        yield from _memory_taken(card)
    yield from _mask(machine)
    yield from _main_memory(machine)
    yield from _shared_memory(machine)
    yield from _hub_cache(machine.cache)
    for listener in machine.listeners:
        if not listener.is_kvgate:
            who = f"{listener.name} (process {listener.pid})" if listener.pid else "a process of another user"
            yield Diagnosis(
                f"Port {listener.port} is taken by {who}.",
                f"End it, or give kvgate another port: --port {listener.port + 1}.",
                kind=Kind.NETWORK,
                sign="port taken",
            )


def looked_at(machine: Machine) -> Iterator[str]:
    """The things that were looked at, for a person to see."""
    for card in machine.cards:
        engines = [str(holder) for holder in card.holders if holder.is_engine]
        serving = f", serving: {'; '.join(engines)}" if engines else ""
        yield f"GPU {card.index} ({card.name}): {_gib(card.free)} of {_gib(card.total)} free{serving}"
    if not machine.cards:
        yield "no NVIDIA GPU: engines run on the processor"
    if machine.visible is not None:
        yield f"CUDA_VISIBLE_DEVICES={machine.visible}"
    whose = "the container's limit" if machine.limited else "the machine"
    yield f"main memory: {_gib(machine.available)} of {_gib(machine.memory)} free ({whose})"
    free = "unknown" if machine.cache.free is None else _gib(machine.cache.free)
    yield f"hub cache {machine.cache.folder}: {free} of disk free"
    growing = [download for download in machine.cache.downloads if download.seconds_still < STALE]
    if growing:
        yield f"{len(growing)} files of the hub cache are being loaded"
    for listener in machine.listeners:
        if listener.is_kvgate:
            yield f"port {listener.port}: kvgate (process {listener.pid})"
    yield f"engine environment: {machine.engine or 'none yet, kvgate sets it up at the first start'}"


def who_holds(cards: Sequence[Card], facts: Mapping[str, str]) -> str:
    """The processes that hold memory of the diagnosis's GPU, in one clause; empty if none is known."""
    device = facts.get("device", "").rpartition(":")[2] or facts.get("gpu", "")
    chosen = [card for card in cards if str(card.index) == device] or list(cards)
    held = [str(holder) for card in chosen for holder in card.holders]
    return f"memory is held now by {'; '.join(held)}" if held else ""


def _memory_taken(card: Card) -> Iterator[Diagnosis]:
    if card.free >= UTILIZATION * card.total or any(holder.is_engine for holder in card.holders):
        return
    fits = int(card.free / card.total * 100) / 100
    held = "; ".join(str(holder) for holder in card.holders) or "processes that the driver does not name here"
    yield Diagnosis(
        f"GPU {card.index}: {_gib(card.free)} of {_gib(card.total)} are free, less than the share of "
        f"{UTILIZATION} that vLLM takes.",
        f"Stop what holds it, or give --gpu-memory-utilization {fits:.2f}.",
        f"held by {held}",
        kind=Kind.MEMORY,
        sign="GPU memory taken by others",
    )


def _mask(machine: Machine) -> Iterator[Diagnosis]:
    if machine.visible is None or not machine.cards:
        return
    named = listed(machine.visible)
    present = {str(card.index) for card in machine.cards}
    if not named:
        yield Diagnosis(
            f"CUDA_VISIBLE_DEVICES hides all {len(present)} GPUs of this machine.",
            "Unset it, or name the GPUs to use.",
            f"CUDA_VISIBLE_DEVICES={machine.visible}",
            kind=Kind.PARALLEL,
            sign="GPU masked",
        )
    elif absent := [name for name in named if name.isdigit() and name not in present]:
        yield Diagnosis(
            f"CUDA_VISIBLE_DEVICES names GPUs that are not here: {', '.join(absent)}. CUDA stops at the first of them.",
            f"Name some of {', '.join(sorted(present, key=int))}.",
            f"CUDA_VISIBLE_DEVICES={machine.visible}",
            kind=Kind.PARALLEL,
            sign="GPU masked",
        )


def _main_memory(machine: Machine) -> Iterator[Diagnosis]:
    if machine.oom_kills or machine.killed:
        times = f"{machine.oom_kills} processes" if machine.oom_kills > 1 else "a process"
        yield Diagnosis(
            f"The kernel killed {times} here because memory ran out.",
            "Give the container or machine more memory, or lower VLLM_CPU_KVCACHE_SPACE and --kv-offloading-size.",
            machine.killed or f"memory.events: oom_kill {machine.oom_kills}",
            kind=Kind.MEMORY,
            sign="killed for memory",
        )
    if machine.available < LITTLE_MEMORY:
        yield Diagnosis(
            f"{_gib(machine.available)} of main memory are free; a vLLM takes 3 GiB before its model.",
            "Stop what else uses memory"
            + (", or raise the container's limit (`--memory`)." if machine.limited else "."),
            kind=Kind.MEMORY,
            sign="little main memory",
        )


def _shared_memory(machine: Machine) -> Iterator[Diagnosis]:
    if machine.shared_memory is not None and machine.shared_memory < GIB and len(machine.cards) > 1:
        yield Diagnosis(
            f"Shared memory (/dev/shm) has {machine.shared_memory / 2**20:.0f} MiB: too little for GPUs to work "
            "together.",
            "Give the container `--ipc=host` or `--shm-size 8g`.",
            kind=Kind.PARALLEL,
            sign="too little shared memory",
        )


def _hub_cache(cache: Cache) -> Iterator[Diagnosis]:
    if cache.free is not None and cache.free < LITTLE_DISK:
        yield Diagnosis(
            f"{_gib(cache.free)} of disk are left for models in {cache.folder}.",
            "Make room (`hf cache prune`), or set HF_HOME to a larger disk.",
            kind=Kind.MODEL,
            sign="disk full",
        )
    if still := [download for download in cache.downloads if download.seconds_still >= STALE]:
        largest = max(still, key=lambda download: download.bytes)
        yield Diagnosis(
            f"{len(still)} downloads of the hub cache were broken off.",
            "Load the model again (`hf download MODEL` goes on where it stopped), or delete the files.",
            f"{largest.path}: {_gib(largest.bytes)}, for {largest.seconds_still / 3600:.1f} h",
            kind=Kind.MODEL,
            sign="download broken off",
        )
    if cache.locks:
        yield Diagnosis(
            f"The disk of the hub cache cannot lock files, and {len(cache.locks)} lock files are left on it: whoever "
            "needs one waits forever.",
            "Delete them while nothing is being loaded, and put HF_HOME on a local disk.",
            str(cache.locks[0]),
            kind=Kind.MODEL,
            sign="cache lock waited for",
        )
    if cache.broken:
        yield Diagnosis(
            f"{len(cache.broken)} files of the hub cache point to nothing: it was copied or cleaned by halves.",
            "Load the model again with `hf download MODEL --force-download`.",
            str(cache.broken[0]),
            kind=Kind.MODEL,
            sign="cache broken",
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
