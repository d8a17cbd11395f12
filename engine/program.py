"""What the supervisor runs: an engine, the gateway, any program."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path

from engine import command
from engine.diagnosis.sign import Diagnosis
from engine.download import Download
from engine.fit import Bounds, Rung, Stop, arguments, environment, next_rung
from engine.lifecycle import Policy
from engine.start_history import StartHistory

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
        described: A digest of how its user described it: one with the same can stand in its place.
        choices: What kvgate chose for it, each with its reason; told before its first start.
        download: What it may have to download first, one launch at a time.
        history: What its starts took before.
        refit: Says what to start instead when a start failed for memory, or that nothing is left to try.
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
    described: str = ""
    choices: tuple[str, ...] = ()
    download: Download | None = field(default=None, repr=False, compare=False)
    history: StartHistory | None = field(default=None, repr=False, compare=False)
    refit: "Callable[[Diagnosis], Refit | Stop] | None" = field(default=None, repr=False, compare=False)

    @classmethod
    def engine(
        cls,
        spec: command.EngineSpec,
        policy: Policy,
        *,
        fit: Bounds | None = None,
        choices: tuple[str, ...] = (),
        tries: tuple[Rung, ...] = (),
    ) -> "Program":
        """Make the program that is this engine, for this machine.

        Args:
            spec: The engine.
            policy: When to restart and when to lose patience.
            fit: What may be changed where it does not fit; where None, nothing is.
            choices: What kvgate chose of its arguments, each with its reason.
            tries: What was changed already.
        """
        memory = memory_bytes()
        if fit is not None and not tries and not fit.on_gpus:
            fit = replace(fit, kv_space=command.kv_space(spec, os.environ, memory))
        fitted = replace(spec, args=(*spec.args, *arguments(tries)), env={**spec.env, **environment(tries)})

        def refit(diagnosis: Diagnosis) -> Refit | Stop:
            assert fit is not None  # noqa: S101 - only then is it asked
            rung = next_rung(diagnosis, fit, tries)
            if isinstance(rung, Stop):
                return rung
            further = (*tries, rung)
            return Refit(cls.engine(spec, policy, fit=fit, choices=choices, tries=further), rung.why, len(further))

        env = command.environment(fitted, os.environ, memory_bytes=memory, local_folder=Path(spec.model).is_dir())
        return cls(
            name=spec.name,
            role=Role.ENGINE,
            argv=command.argv(fitted),
            env=env,
            ready_url=f"{spec.url}/health",
            follows_log=True,
            policy=policy,
            choices=choices,
            download=Download.of(spec.model, env, command.value_of(spec.args, "--revision")),
            history=StartHistory(spec.model, fitted.args),
            refit=refit if fit is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Refit:
    """A program to start in the place of one that did not fit: the `attempt`-th, and why it may fit."""

    program: Program
    why: str
    attempt: int


def memory_bytes() -> int:
    """Return the memory this machine, or the container kvgate runs in, may use."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
