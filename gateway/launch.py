"""From settings to what the supervisor runs: the engines, and the gateway that fronts them."""

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.command import EngineSpec
from engine.environment import engine_python
from engine.gpu import gpus
from engine.lifecycle import Policy
from engine.placement import PlacementError, place
from engine.process import free_port
from engine.program import Program, Role
from gateway.config import EndpointSettings, EngineSettings, ModelSettings, Settings
from gateway.settings_sources import ConfigurationError, revealed

USAGE_ERROR = 2
"""Exit code when kvgate cannot run as it was told to, and trying again will not help."""
_GATEWAY_EXTRA_STOP = 10.0
"""Seconds the gateway gets beyond its own bound for running streams."""


def programs(settings: Settings, python: Path | None = None, listening: Sequence[socket.socket] = ()) -> list[Program]:
    """Everything that has to run, the gateway last.

    Args:
        settings: with at least one engine.
        python: interpreter with vllm for engines that name none; set up now where None.
        listening: sockets that the gateway accepts connections from, as `gateway.server.bind_all` makes them.

    Raises:
        ConfigurationError: an engine cannot be placed or described.
        SetupError: the engine's environment could not be made.
    """
    launched = [(model, model.engine) for model in settings.models if model.engine is not None]
    wanted = [group for _, engine in launched for group in engine.gpus or (None,) * engine.replicas]
    try:
        devices = iter(place(wanted, [gpu.index for gpu in gpus()], os.environ))
    except PlacementError as error:
        raise ConfigurationError(f"engines: {error}") from None
    running: list[Program] = []
    fronting: list[ModelSettings] = []
    for model in settings.models:
        if model.engine is None:
            fronting.append(model)
            continue
        interpreter = model.engine.python or python or engine_python()
        specs = _specs(model, model.engine, interpreter, devices)
        running += [Program.engine(spec, _policy(model.engine)) for spec in specs]
        fronting.append(_fronting(model, model.engine, specs))
    resolved = settings.model_copy(update={"models": tuple(fronting)})
    return [*running, _gateway(resolved, listening)]


def _specs(
    model: ModelSettings, engine: EngineSettings, python: Path, devices: Iterator[tuple[str, ...]]
) -> list[EngineSpec]:
    name = served_name(model)
    try:
        return [
            EngineSpec(
                name=f"engine {name}" if engine.replicas == 1 else f"engine {name} {number}",
                model=engine.model,
                served_name=name,
                port=free_port(),
                python=python,
                gpus=next(devices),
                args=engine.args,
                env={key: value.get_secret_value() for key, value in engine.env.items()},
            )
            for number in range(engine.replicas)
        ]
    except ValueError as error:
        raise ConfigurationError(f"model {name}: {error}") from None


def served_name(model: ModelSettings) -> str:
    """The name clients use for a model that kvgate launches: the one configured, else the folder's or the hub id."""
    assert model.engine is not None  # noqa: S101  # only asked for models with an engine
    folder = Path(model.engine.model)
    return model.name or (folder.resolve().name if folder.is_dir() else model.engine.model)


def _fronting(model: ModelSettings, engine: EngineSettings, specs: list[EngineSpec]) -> ModelSettings:
    """The model as the gateway sees it: every engine is an endpoint."""
    limit = _argument(engine.args, "--max-num-seqs")
    launched = [EndpointSettings.model_validate({"url": spec.url, "max_num_seqs": limit}) for spec in specs]
    return model.model_copy(
        update={
            "name": served_name(model),
            "tokenizer": model.tokenizer or _argument(engine.args, "--tokenizer") or engine.model,
            "endpoints": (*model.endpoints, *launched),
            "engine": None,
        }
    )


def _argument(args: tuple[str, ...], flag: str) -> str | None:
    """The value of a flag in an argument list, the last one where it is repeated."""
    value = None
    for position, argument in enumerate(args):
        name, joined, inline = argument.partition("=")
        if name.replace("_", "-") == flag:
            value = inline if joined else next(iter(args[position + 1 : position + 2]), None)
    return value


def _policy(engine: EngineSettings) -> Policy:
    return Policy(engine.start_timeout, engine.stop_timeout, engine.max_restarts)


def _gateway(settings: Settings, listening: Sequence[socket.socket]) -> Program:
    values: Mapping[str, Any] = revealed(settings)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    fds = tuple(opened.fileno() for opened in listening)
    return Program(
        name="gateway",
        role=Role.GATEWAY,
        argv=(*(sys.executable, "-P", "-m", "gateway.cli", "gateway"), *(f"--listen={number}" for number in fds)),
        env=environment,
        stdin=json.dumps(values).encode(),
        fds=fds,
        tells=True,
        final_codes=frozenset({USAGE_ERROR}),
        policy=Policy(stop_timeout=settings.server.shutdown_timeout + _GATEWAY_EXTRA_STOP),
    )
