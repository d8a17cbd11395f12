"""The step from an engine's description to the program that runs it on this machine."""

import os
from dataclasses import replace
from pathlib import Path

from engine import spec as specs
from engine.diagnosis.sign import Diagnosis
from engine.memory_ladder import Bounds, Rung, Stop, arguments, environment, next_rung
from engine.program import Engine, Refit, Role
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
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
    spec, fit = spec.kind.tuned(spec, fit)
    fitted = replace(spec, args=(*spec.args, *arguments(tries)), env={**spec.env, **environment(tries)})

    def refit(diagnosis: Diagnosis) -> Refit | Stop:
        assert fit is not None  # noqa: S101 - only then is it asked
        rung = next_rung(diagnosis, fit, tries, spec.kind.ladder)
        if isinstance(rung, Stop):
            return rung
        further = (*tries, rung)
        changed = assembled(spec, policy, fit=fit, choices=choices, described=described, tries=further)
        return Refit(changed, rung.why, len(further))

    env = specs.environment(fitted, os.environ, local_folder=Path(spec.model).is_dir())
    return Engine(
        name=spec.name,
        role=Role.ENGINE,
        argv=specs.argv(fitted),
        env=env,
        ready_url=f"{spec.url}/health",
        follows_log=True,
        phases=spec.kind.phases,
        policy=policy,
        described=described,
        choices=choices,
        download=spec.kind.download(spec, env),
        history=StartHistory(spec.model, fitted.args),
        refit=refit if fit is not None else None,
        spec=fitted,
    )


def moved(engine: Engine, port: int) -> Engine:
    """The same engine on another port. It keeps the changes made so far and gets no new ones."""
    spec = replace(engine.spec, port=port)
    again = assembled(spec, engine.policy, choices=engine.choices, described=engine.described)
    return replace(again, place=engine.place, shares=engine.shares)
