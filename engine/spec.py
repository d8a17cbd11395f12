"""PURE. An engine to launch, and what a launch has to know of its kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.download import Download
    from engine.filling import Filled
    from engine.gpu import Gpu
    from engine.memory_ladder import Bounds, Step
    from engine.phases import PhaseSign


@dataclass(frozen=True, slots=True)
class Fronted:
    """What a gateway has to know of an engine that it cannot read from it.

    Attributes:
        tokenizer: Folder or hub id of its tokenizer; None if the engine counts.
        chat_template: The template it was told to use, as its arguments give it.
        max_num_seqs: Its limit of sequences, if its arguments set one.
        kv_tokens: Its KV cache in tokens, if its arguments set it.
    """

    tokenizer: str | None = None
    chat_template: str | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """What an engine needs at its launch so that it can sleep: leave its cards, keep its process and weights."""

    args: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What a launch has to know of one kind of engine. `args` are arguments as on its command line.

    Attributes:
        name: As people call it.
        words: Words of its command line between the executable and the arguments.
        refused: Arguments that would hide it from kvgate, and what to use instead.
        hidden: Variables of kvgate's environment that would hide it.
        debug: Environment in which it says most about a hang or a crash.
        template_flag: The argument that takes the file of a chat template.
        phases: Signs in its log of the phases of its start.
        ladder: What may be tried when it does not fit into memory.
        flags: The full names of the given flags.
        arguments: kvgate's own arguments, which come before the user's.
        served_name: The name clients use for a model that was given none.
        check: Refuses a model that it could not load (`CheckpointError`), given the model, args and environment; its
            `config.json`, empty where it has none.
        fronted: What its gateway has to know of it, given the model and args.
        gpus_needed: How many GPUs it runs on.
        share_of: The share of each of these GPUs' memory that it takes.
        filled: What to add to args, given the model, args, the cards, whether its user named them, and how many engines
            share them.
        tuned: Returns the spec with the environment variables that kvgate chose, and the bounds that follow from them.
        shortage: Why it does not fit beside what runs now, given kvgate's environment, the GPUs, and the machine's free
            bytes; None if it does.
        download: The download it may need first, given its environment.
        sleep: What lets it sleep; None if it cannot.
    """

    name: str
    words: tuple[str, ...]
    refused: Mapping[str, str]
    hidden: frozenset[str]
    debug: Mapping[str, str]
    template_flag: str
    phases: "tuple[PhaseSign, ...]"
    ladder: "tuple[Step, ...]"
    flags: Callable[[Sequence[str]], frozenset[str]]
    arguments: "Callable[[EngineSpec], tuple[str, ...]]"
    served_name: Callable[[str], str]
    check: Callable[[str, Sequence[str], Mapping[str, str]], Mapping[str, Any]]
    fronted: Callable[[str, Sequence[str]], Fronted]
    gpus_needed: Callable[[Sequence[str]], int]
    share_of: Callable[[Sequence[str]], float]
    filled: "Callable[[str, Sequence[str], Sequence[Gpu], bool, int], tuple[Filled, ...]]"
    tuned: "Callable[[EngineSpec, Bounds | None], tuple[EngineSpec, Bounds | None]]"
    shortage: "Callable[[EngineSpec, Mapping[str, str], Sequence[Gpu], int], str | None]"
    download: "Callable[[EngineSpec, Mapping[str, str]], Download | None]"
    sleep: Sleep | None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine process to launch.

    Attributes:
        kind: What is particular to engines of its kind.
        name: kvgate's name for it, unique among its engines.
        model: Model folder, hub id or file.
        served_name: The name clients use.
        port: Port it listens on. A restart keeps it.
        executable: The program, or an interpreter that has it.
        gpus: Value of `CUDA_VISIBLE_DEVICES`: NVML indices or UUIDs. Empty on machines without GPUs, and for an engine
            that sees them all.
        args: Further arguments, as on its command line. They come last and override kvgate's.
        env: Further environment. It overrides kvgate's and the one kvgate was started with.
        host: Address of this machine that it listens on, as in a URL.
    """

    kind: EngineKind = field(repr=False)
    name: str
    model: str
    served_name: str
    port: int
    executable: Path
    gpus: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        for flag in sorted(self.kind.flags(self.args) & self.kind.refused.keys()):
            raise ValueError(f"engine argument {flag} is set by kvgate; use {self.kind.refused[flag]}")

    @property
    def address(self) -> str:
        """Host and port of the engine."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Base URL of the engine."""
        return f"http://{self.address}"


def argv(spec: EngineSpec) -> tuple[str, ...]:
    """Return the command line."""
    return (str(spec.executable), *spec.kind.words, *spec.kind.arguments(spec), *spec.args)


def environment(spec: EngineSpec, inherited: Mapping[str, str], *, local_folder: bool) -> dict[str, str]:
    """Return the whole environment.

    Args:
        spec: The engine.
        inherited: kvgate's own environment.
        local_folder: Whether the model is a folder of this machine. The start then needs no hub and must not wait for
            one that cannot be reached.
    """
    # kvgate's own settings may hold keys, which the engine must not see.
    kept = {name: value for name, value in inherited.items() if not name.startswith("KVGATE_")}
    said = {name: value for name, value in kept.items() if name not in spec.kind.hidden} | dict(spec.env)
    ours = {"PYTHONUNBUFFERED": "1"}
    if local_folder:
        ours["HF_HUB_OFFLINE"] = "1"
    chosen = {**ours, **said}
    if spec.gpus and "CUDA_VISIBLE_DEVICES" not in spec.env:
        # NVML counts in PCI order; CUDA does so only on request.
        chosen |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}
    return chosen
