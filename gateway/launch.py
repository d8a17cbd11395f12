"""From settings to what the supervisor runs: the engines, and the gateway that fronts them."""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.command import EngineSpec, flags_of, value_of
from engine.environment import engine_python
from engine.gpu import gpus
from engine.lifecycle import Policy
from engine.plan.arguments import ArgumentError, Arguments
from engine.process import free_port
from engine.program import Program, Role
from gateway.chat_templates import FLAG, template_of
from gateway.config import EndpointSettings, EngineSettings, ModelSettings, Settings
from gateway.engine_setup import fitted, seats
from gateway.settings_sources import ConfigurationError, revealed

USAGE_ERROR = 2
"""Exit code when kvgate cannot run as it was told to, and trying again will not help."""
_GATEWAY_EXTRA_STOP = 10.0
"""Seconds the gateway gets beyond its own bound for running streams."""
_OF_SUPERVISION = frozenset(
    {"replicas", "gpus", "share_gpu", "fit", "min_model_len", "start_timeout", "stop_timeout", "max_restarts"}
    | {"hung_timeout", "reload"}
)
"""Settings of an engine that its process knows nothing of; `gpus` counts as what they come to for each replica."""


def programs(
    settings: Settings,
    python: Path | None = None,
    listening: Sequence[socket.socket] = (),
    running: Sequence[Program] = (),
) -> list[Program]:
    """Everything that has to run, the gateway last.

    Args:
        settings: of kvgate.
        python: interpreter with vllm for engines that name none; set up now where None.
        listening: sockets that the gateway accepts connections from, as `gateway.server.bind_all` makes them.
        running: what runs already. An engine that is described as one of these is that one; others get other names.

    Raises:
        ConfigurationError: an engine cannot be placed or described.
        SetupError: the engine's environment could not be made.
    """
    launched = [model.engine for model in settings.models if model.engine is not None]
    placed = iter(seats(launched, gpus(), os.environ, [program for program in running if program.role is Role.ENGINE]))
    taken = {program.name for program in running}
    left = list(running)
    engines: list[Program] = []
    fronting: list[ModelSettings] = []
    for model in settings.models:
        if model.engine is None:
            fronting.append(model)
            continue
        interpreter = model.engine.python or python or engine_python()
        of_model: list[Program] = []
        for number in range(model.engine.replicas):
            seat = next(placed)
            described = _description(model, model.engine, interpreter, seat.gpus)
            program = next((program for program in left if program.described == described), None)
            if program is not None:
                left.remove(program)
            else:
                name = _unused(_name(model, model.engine, number), taken)
                spec = _spec(model, model.engine, interpreter, seat.gpus, name)
                spec, choices, bounds = fitted(spec, model.engine, seat)
                program = Program.engine(spec, _policy(model.engine), fit=bounds, choices=choices)
                program = replace(program, described=described)
            of_model.append(program)
        engines += of_model
        fronting.append(_fronting(model, model.engine, of_model))
    resolved = settings.model_copy(update={"models": tuple(fronting)})
    return [*engines, _gateway(resolved, listening, _unused("gateway", taken), engines)]


def _spec(model: ModelSettings, engine: EngineSettings, python: Path, gpus: tuple[str, ...], name: str) -> EngineSpec:
    try:
        return EngineSpec(
            name=name,
            model=engine.model,
            served_name=served_name(model),
            port=free_port(),
            python=python,
            gpus=gpus,
            args=_args(model, engine),
            env={key: value.get_secret_value() for key, value in engine.env.items()},
        )
    except ValueError as error:
        raise ConfigurationError(f"model {served_name(model)}: {error}") from None


def _args(model: ModelSettings, engine: EngineSettings) -> tuple[str, ...]:
    if model.chat_template is None or FLAG in flags_of(engine.args):
        return engine.args
    return (*engine.args, FLAG, model.chat_template)


def _name(model: ModelSettings, engine: EngineSettings, number: int) -> str:
    name = served_name(model)
    return f"engine {name}" if engine.replicas == 1 else f"engine {name} {number}"


def _unused(name: str, taken: set[str]) -> str:
    """The name, with a number where one that runs has it, as it does while the one replaces the other."""
    return next(name for name in chain([name], (f"{name} #{n}" for n in count(2))) if name not in taken)


def _description(model: ModelSettings, engine: EngineSettings, python: Path, gpus: tuple[str, ...]) -> str:
    """What an engine that runs would have to be started anew for, as a digest: there may be secrets in it."""
    described = {name: value for name, value in revealed(engine).items() if name not in _OF_SUPERVISION}
    whole = json.dumps([served_name(model), model.chat_template, str(python), gpus, described], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def served_name(model: ModelSettings) -> str:
    """The name clients use for a model that kvgate launches: the one configured, else the folder's or the hub id."""
    assert model.engine is not None  # noqa: S101  # only asked for models with an engine
    folder = Path(model.engine.model)
    return model.name or (folder.resolve().name if folder.is_dir() else model.engine.model)


def _fronting(model: ModelSettings, engine: EngineSettings, engines: list[Program]) -> ModelSettings:
    """The model as the gateway sees it: every engine is an endpoint."""
    limit = _sequences(engine)
    urls = [(program.ready_url or "").removesuffix("/health") for program in engines]
    launched = [EndpointSettings.model_validate({"url": url, "max_num_seqs": limit}) for url in urls]
    return model.model_copy(
        update={
            "name": served_name(model),
            "chat_template": template_of(model, engine.args),
            "tokenizer": model.tokenizer or value_of(engine.args, "--tokenizer") or engine.model,
            "endpoints": (*model.endpoints, *launched),
            "engine": None,
        }
    )


def _sequences(engine: EngineSettings) -> int | None:
    """How many sequences it runs at most, where that was given; of what is no number vLLM says so."""
    try:
        limit = Arguments.parse(engine.args).integer("--max-num-seqs")
    except ArgumentError:
        return None
    return limit if limit is not None and limit > 0 else None


def _policy(engine: EngineSettings) -> Policy:
    return Policy(engine.start_timeout, engine.stop_timeout, engine.max_restarts, hung_timeout=engine.hung_timeout)


def _gateway(settings: Settings, listening: Sequence[socket.socket], name: str, engines: Sequence[Program]) -> Program:
    values: Mapping[str, Any] = revealed(settings)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    fds = tuple(opened.fileno() for opened in listening)
    return Program(
        name=name,
        role=Role.GATEWAY,
        argv=(
            *(sys.executable, "-P", "-m", "gateway.cli", "gateway"),
            *(f"--listen={number}" for number in fds),
            *(f"--launched={urlsplit(engine.ready_url or '').netloc}" for engine in engines),
        ),
        env=environment,
        stdin=json.dumps(values).encode(),
        fds=fds,
        tells=True,
        final_codes=frozenset({USAGE_ERROR}),
        policy=Policy(stop_timeout=settings.server.shutdown_timeout + _GATEWAY_EXTRA_STOP),
        described=_code(),
    )


def settings_of(gateway: Program) -> Settings:
    """The settings that a gateway is told when it starts."""
    return Settings.model_validate_json(gateway.stdin or b"")


def _code() -> str:
    """A digest of the code as it is on disk now: after an upgrade it is another one than what runs."""
    found = []
    for package in ("gateway", "engine"):
        for file in sorted(Path(__file__).parents[1].joinpath(package).rglob("*")):
            if file.suffix in {".py", ".so"}:
                stat = file.stat()
                found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
