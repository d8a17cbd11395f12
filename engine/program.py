"""PURE. The programs the supervisor runs: an engine, the gateway, or any other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from engine.diagnosis.sign import Diagnosis
from engine.memory_ladder import Stop
from engine.phases import PhaseSign
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec

if TYPE_CHECKING:
    from engine.download import Download
    from engine.start_history import StartHistory


class Role(Enum):
    """The purpose of a program. They stop in this order, so that running streams can finish."""

    GATEWAY = auto()
    OWNER = auto()
    """Decides for several gateways."""
    ENGINE = auto()


@dataclass(frozen=True, slots=True)
class Program:
    """A program to keep running.

    Attributes:
        name: Its unique name in messages.
        role: Decides when it stops, and how bad it is if it cannot run.
        argv: Its command line.
        env: Its whole environment.
        stdin: Its standard input at each start.
        ready_url: Answers 200 when it is ready. Without one it is ready as soon as it runs.
        fds: Descriptors of kvgate that it inherits: its listening sockets.
        tells: Whether it reports its readiness, and other news for its supervisor, on the descriptor that
            `engine.process.NEWS` names.
        follows_log: Whether kvgate reads its output for phases and causes. Otherwise the output goes to kvgate's own.
        phases: Signs in its output of the phases of its start.
        final_codes: Exit codes that mean another start would fail in the same way.
        policy: When to restart and when to give up.
        described: A digest of its user's description. A program with the same digest can replace it.
        choices: kvgate's choices for it, each with its reason; reported before its first start.
        download: The download it may need first, one launch at a time.
        history: How long its earlier starts took.
        refit: Returns what to start instead when a start failed for lack of memory, or that nothing is left to try.
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes | None = field(default=None, repr=False)
    ready_url: str | None = None
    fds: tuple[int, ...] = ()
    tells: bool = False
    follows_log: bool = False
    phases: tuple[PhaseSign, ...] = ()
    final_codes: frozenset[int] = frozenset()
    policy: Policy = field(default_factory=Policy)
    described: str = ""
    choices: tuple[str, ...] = ()
    download: "Download | None" = field(default=None, repr=False, compare=False)
    history: "StartHistory | None" = field(default=None, repr=False, compare=False)
    refit: "Callable[[Diagnosis], Refit | Stop] | None" = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Engine(Program):
    """An engine, with the spec that its command line and environment were made from.

    Attributes:
        on_demand: Whether it comes and goes.
        sleeps: Whether it sleeps, where it can, when it goes; otherwise it ends.
        place: What one engine at a time may have, as the cards of a group. Other settings may give it another place.
        shares: Whether others may run on its GPUs beside it, where they do so, too.
    """

    spec: EngineSpec = field(kw_only=True, repr=False)
    on_demand: bool = field(default=False, kw_only=True)
    sleeps: bool = field(default=False, kw_only=True)
    place: str = field(default="", kw_only=True, compare=False)
    shares: bool = field(default=False, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Refit:
    """A program to start in place of one that did not fit: the number of the attempt, and why it may fit."""

    program: Program
    why: str
    attempt: int
