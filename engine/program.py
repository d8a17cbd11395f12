"""What the supervisor runs: an engine, the gateway, any program."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Self

from engine import command
from engine.lifecycle import Policy

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class Role(Enum):
    """What a program is for. Gateways stop before engines, so that running streams can finish."""

    GATEWAY = auto()
    ENGINE = auto()


@dataclass(frozen=True, slots=True)
class Program:
    """A program to keep running.

    Attributes:
        name: What messages call it; unique.
        role: When it stops, and how bad it is when it cannot run.
        argv: Its command line.
        env: Its whole environment.
        stdin: What it reads on its standard input at each start.
        ready_url: Answers 200 when it is ready; without one it is ready once it runs.
        fds: Descriptors of kvgate that it gets too: its listening sockets.
        tells: Whether it says itself that it is ready, and what else its supervisor should know, on the descriptor
            that `engine.process.NEWS` names.
        follows_log: Whether its output is read for phases and causes; otherwise it goes where kvgate's own goes.
        final_codes: Exit codes with which it says that another start would fail in the same way.
        policy: When to restart and when to lose patience.
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
    final_codes: frozenset[int] = frozenset()
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def engine(cls, spec: command.EngineSpec, policy: Policy) -> Self:
        """Make the program that is this engine, for this machine."""
        environment = command.environment(
            spec, os.environ, memory_bytes=memory_bytes(), local_folder=Path(spec.model).is_dir()
        )
        return cls(
            name=spec.name,
            role=Role.ENGINE,
            argv=command.argv(spec),
            env=environment,
            ready_url=f"{spec.url}/health",
            follows_log=True,
            policy=policy,
        )


def memory_bytes() -> int:
    """Return the memory this machine, or the container kvgate runs in, may use."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
