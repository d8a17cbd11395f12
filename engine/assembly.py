"""The step from an engine's description to the program that runs it on this machine."""

import os
from dataclasses import replace
from pathlib import Path

from engine import command
from engine.command import KV_SPACE, EngineSpec
from engine.diagnosis.sign import Diagnosis
from engine.download import Download
from engine.host_memory import total_bytes
from engine.lifecycle import Policy
from engine.memory_ladder import Bounds, Rung, Stop, arguments, environment, next_rung
from engine.program import Engine, Refit, Role
from engine.start_history import StartHistory


def assembled(
    spec: EngineSpec,
    policy: Policy,
    *,
    fit: Bounds | None = None,
    choices: tuple[str, ...] = (),
    described: str = "",
    tries: tuple[Rung, ...] = (),
) -> Engine:
    """Make the program that runs this engine. Its spec then includes kvgate's own choices.

    Args:
        spec: The engine.
        policy: When to restart and when to give up.
        fit: What may be changed if it does not fit; None to change nothing.
        choices: The arguments kvgate chose, each with its reason.
        described: A digest of how its user described it.
        tries: The changes already made.
    """
    kv_space = command.kv_space(spec, os.environ, total_bytes())
    if kv_space is not None:
        spec = replace(spec, env={**spec.env, KV_SPACE: str(kv_space)})
        if fit is not None and not fit.on_gpus:
            fit = replace(fit, kv_space=kv_space)
    fitted = replace(spec, args=(*spec.args, *arguments(tries)), env={**spec.env, **environment(tries)})

    def refit(diagnosis: Diagnosis) -> Refit | Stop:
        assert fit is not None  # noqa: S101 - only then is it asked
        rung = next_rung(diagnosis, fit, tries)
        if isinstance(rung, Stop):
            return rung
        further = (*tries, rung)
        changed = assembled(spec, policy, fit=fit, choices=choices, described=described, tries=further)
        return Refit(changed, rung.why, len(further))

    env = command.environment(fitted, os.environ, local_folder=Path(spec.model).is_dir())
    return Engine(
        name=spec.name,
        role=Role.ENGINE,
        argv=command.argv(fitted),
        env=env,
        ready_url=f"{spec.url}/health",
        follows_log=True,
        policy=policy,
        described=described,
        choices=choices,
        download=Download.of(spec.model, env, spec.arguments.text("--revision")),
        history=StartHistory(spec.model, fitted.args),
        refit=refit if fit is not None else None,
        spec=fitted,
    )


def moved(engine: Engine, port: int) -> Engine:
    """The same engine on another port. It keeps the changes made so far and gets no new ones."""
    spec = replace(engine.spec, port=port)
    return assembled(spec, engine.policy, choices=engine.choices, described=engine.described)
