"""The plan's warnings about engines before they start: a start that must fail takes minutes to say so."""

import os
from collections.abc import Iterator

from engine.arguments import ArgumentError, Arguments
from engine.filling import gpus_needed
from engine.plan.budget import RefusedError, Request
from engine.plan.cards import GIB
from engine.plan.checkpoint import read_checkpoint
from engine.plan.hub import CheckpointError
from engine.plan.kv import UnpackableError
from engine.plan.planner import Plan, Verdict, plan
from engine.plan.remedies import FREE_MEMORY
from engine.plan.shape import ModelShape, UnknownShapeError
from gateway.config.engine import EngineSettings
from gateway.config.settings import Settings
from gateway.serve.adapters import doubts
from gateway.serve.hardware import hardware_here
from gateway.serve.launch import served_name
from gateway.serve.turns import shared


def foreseen(settings: Settings) -> Iterator[str]:
    """A line for each engine that may not start as described, for GPUs that engines share, and for doubtful adapters.

    There is none for engines that cannot be planned.

    It changes nothing: an engine starts with the settings and the filled-in arguments.
    """
    yield from map(str, shared(settings))
    for model in settings.models:
        if model.engine is None or not settings.launches(model):
            continue
        if (line := _foreseen(model.engine)) is not None:
            yield f"{served_name(model)}: {line}"
        yield from (f"{served_name(model)}: {line}" for line in doubts(model))


def _foreseen(engine: EngineSettings) -> str | None:
    environ = {**os.environ, **{name: value.get_secret_value() for name, value in engine.env.items()}}
    indices = None if engine.gpus is None else engine.gpus[0]
    arguments = Arguments.parse(engine.args)
    hardware = hardware_here(environ, gpus_needed(arguments), indices)
    if hardware is None:
        return None
    try:
        checkpoint = read_checkpoint(engine.model, environ, revision=arguments.text("--revision"))
        shape = ModelShape.from_config(checkpoint.config)
        made = plan(Request(engine.model, shape, checkpoint.weights(shape), hardware, arguments, environ=environ))
    except RefusedError as error:
        return f"vLLM will refuse it: {error}"
    except (ArgumentError, CheckpointError, UnknownShapeError, UnpackableError):
        return None
    # `engine.filling` sets the share of a card from its free memory.
    filled_in = made.verdict is Verdict.CHANGES and all(change.remedy == FREE_MEMORY for change in made.changes)
    return None if made.asked.fits or filled_in else _said(made, f"{hardware.count} x {hardware.name}")


def _said(made: Plan, where: str) -> str:
    short = made.asked.short / GIB
    how = "may not fit" if made.asked.may_fit else "does not fit"
    fits = f"it {how} on {where} as it is described, by {short:.1f} GiB each"
    if made.verdict is Verdict.NOT:
        return "; the nearest that fits: ".join((fits, *made.nearest[:1]))
    changes = " ".join(made.words) or ", ".join(f"a checkpoint of kind {c.checkpoint}" for c in made.changes)
    return f"{fits}; it would with {changes} (`kvgate plan` says why)"
