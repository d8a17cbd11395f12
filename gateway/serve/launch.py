"""The step from settings to the supervisor's programs: the engines, and the gateway in front of them."""

import hashlib
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from engine.assembly import assembled
from engine.interpreter import engine_python
from engine.kinds import kind_of
from engine.llama.program import llama_server
from engine.nvml import gpus
from engine.plan.gguf import is_gguf
from engine.process import free_port
from engine.program import Engine, Program, Role
from engine.program_lifecycle import Policy
from engine.spec import EngineKind, EngineSpec, Sleep
from engine.vllm.kind import VLLM
from gateway.app.chat_templates import template_of
from gateway.config.endpoint import EndpointSettings
from gateway.config.engine import EngineSettings, as_word, from_words, host_of, place_of
from gateway.config.errors import ConfigurationError
from gateway.config.secrets import revealed
from gateway.config.settings import ModelSettings, Settings
from gateway.runtime.failure import USAGE_ERROR
from gateway.serve.adapters import UPDATING, modules, switches
from gateway.serve.engine_setup import fitted, seats
from gateway.serve.owner_socket import OwnerSocket
from gateway.serve.processes import KEY
from gateway.serve.turns import with_turns

_GATEWAY_EXTRA_STOP = 10.0
"""Seconds the gateway gets beyond its own time limit for running streams."""
_GATEWAY_STEADY = 10.0
"""Seconds of service after which a gateway's earlier ends are forgotten: it loads no weights, and without it nobody is
served."""
_OWNER_BACKOFF = 0.05
"""Seconds before the first new start of an owner that ended by itself: fronts wait for it, and so do their clients."""
_OWNER_RESTARTS = 10
"""Starts that may fail in a row before kvgate ends with all engines: within 51 s. A gateway gets 31 s."""
_LAUNCHED = "--launched="
_OF_SUPERVISION = frozenset(
    {"replicas", "gpus", "share_gpu", "fit", "min_model_len", "start_timeout", "stop_timeout", "max_restarts"}
    | {"hung_timeout", "reload", "choice", "alternatives", "quality", "idle_stop", "group"}
)
"""Settings of an engine that do not reach its process. `gpus` and `choice` count by their result for each replica."""


@dataclass(frozen=True, slots=True)
class Gateway(Program):
    """A gateway, with the settings it gets at its start."""

    settings: Settings = field(kw_only=True, repr=False)


def programs(
    settings: Settings,
    python: Path | None = None,
    listening: Sequence[socket.socket] = (),
    running: Sequence[Program] = (),
    owner: OwnerSocket | None = None,
) -> tuple[list[Engine], list[Gateway]]:
    """The engines that have to run, and the gateway: one process, or the owner of the decisions and then its fronts.

    Args:
        settings: of kvgate.
        python: interpreter with vllm for engines that name none; None to set one up now.
        listening: sockets the gateway accepts connections from, as `gateway.server.server.bind_all` makes them.
        running: the programs that already run. An engine with the description of one of these is that one; others get
            other names.
        owner: between the owner and its fronts; None for one gateway alone.

    Raises:
        ConfigurationError: an engine cannot be placed or described.
        SetupError: the engine's environment could not be made, or there is no llama-server.
    """
    settings = with_turns(settings)
    launched = [model.engine for model in settings.models if model.engine is not None and settings.launches(model)]
    left = [program for program in running if isinstance(program, Engine)]
    placed = iter(seats(launched, gpus(), os.environ, left))
    taken = {program.name for program in running}
    engines: list[Engine] = []
    fronting: list[ModelSettings] = []
    launches: list[str] = []
    of_name: Counter[str] = Counter()
    for model in settings.models:
        if model.engine is None:
            fronting.append(model)
            continue
        of_name[served_name(model)] += 1
        place = place_of(model.engine, served_name(model), of_name[served_name(model)])
        if not settings.launches(model):
            assert model.engine.at is not None  # noqa: S101  # it says who launches it
            launches.append(f"{_LAUNCHED}{as_word(model.engine.at, model.engine, place)}")
            fronting.append(_fronting(model, kind_of(model.engine.model), [f"http://{model.engine.at}"]))
            continue
        kind, executable = _program(model.engine, python)
        of_model: list[Engine] = []
        for number in range(model.engine.replicas):
            seat = next(placed)
            described = _description(model, model.engine, executable, seat.gpus)
            program = next((program for program in left if program.described == described), None)
            if program is not None:
                left.remove(program)
            else:
                name = unused(_name(model, model.engine, number), taken)
                taken.add(name)
                spec = _spec(model, model.engine, (kind, executable), seat.gpus, name)
                spec, choices, bounds = fitted(spec, model.engine, seat)
                policy = _policy(model.engine)
                program = assembled(spec, policy, fit=bounds, choices=choices, described=described)
                sleeps = _sleep(model.engine, kind) is not None
                program = replace(program, on_demand=model.engine.on_demand, sleeps=sleeps)
            program = replace(program, place=place, shares=model.engine.share_gpu)
            of_model.append(program)
            launches.append(f"{_LAUNCHED}{as_word(program.spec.address, model.engine, place)}")
        engines += of_model
        args = of_model[0].spec.args if model.engine.at is None else ()
        fronting.append(_fronting(model, kind, [program.spec.url for program in of_model], args))
    resolved = settings.model_copy(update={"models": tuple(fronting)})
    return engines, list(_gateways(resolved, listening, tuple(launches), owner))


def _program(engine: EngineSettings, python: Path | None) -> tuple[EngineKind, Path]:
    """How this engine is launched, and its program."""
    if is_gguf(engine.model):
        return llama_server(engine.llama_server)
    return VLLM, engine.python or python or engine_python()


def _spec(
    model: ModelSettings, engine: EngineSettings, program: tuple[EngineKind, Path], gpus: tuple[str, ...], name: str
) -> EngineSpec:
    kind, executable = program
    sleep = _sleep(engine, kind)
    env = (UPDATING if model.lora else {}) | (dict(sleep.env) if sleep is not None else {})
    try:
        return EngineSpec(
            kind=kind,
            name=name,
            model=engine.model,
            served_name=served_name(model),
            port=free_port() if engine.at is None else int(engine.at.rpartition(":")[2]),
            executable=executable,
            gpus=gpus,
            args=(*_args(model, engine, kind), *modules(model)),
            env=env | {key: value.get_secret_value() for key, value in engine.env.items()},
            host="127.0.0.1" if engine.at is None else host_of(engine.at),
        )
    except ValueError as error:
        raise ConfigurationError(f"model {served_name(model)}: {error}") from None


def _args(model: ModelSettings, engine: EngineSettings, kind: EngineKind) -> tuple[str, ...]:
    sleep = _sleep(engine, kind)
    args = (*engine.args, *switches(model, engine.args), *(sleep.args if sleep is not None else ()))
    if model.chat_template is None or kind.template_flag in kind.flags(engine.args):
        return args
    return (*args, kind.template_flag, model.chat_template)


def _sleep(engine: EngineSettings, kind: EngineKind) -> Sleep | None:
    return kind.sleep if engine.idle == "sleep" else None


def _name(model: ModelSettings, engine: EngineSettings, number: int) -> str:
    name = served_name(model)
    return f"engine {name}" if engine.replicas == 1 else f"engine {name} {number}"


def unused(name: str, taken: set[str]) -> str:
    """The name, with a number added if a running program has it, as during a replacement."""
    return next(name for name in chain([name], (f"{name} #{n}" for n in count(2))) if name not in taken)


def _description(model: ModelSettings, engine: EngineSettings, executable: Path, gpus: tuple[str, ...]) -> str:
    """A digest of everything whose change needs a restart of the engine. A digest, since it may include secrets."""
    described = {name: value for name, value in revealed(engine).items() if name not in _OF_SUPERVISION}
    # Which adapters it has changes while it runs, if it can; that it has any, or of which rank, does not.
    described["lora"] = (*switches(model, engine.args), *modules(model))
    whole = json.dumps([served_name(model), model.chat_template, str(executable), gpus, described], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def served_name(model: ModelSettings) -> str:
    """The name clients use for a launched model: the configured one, else the folder's or file's name or the hub id."""
    assert model.engine is not None  # noqa: S101  # only asked for models with an engine
    return model.name or kind_of(model.engine.model).served_name(model.engine.model)


def _fronting(model: ModelSettings, kind: EngineKind, urls: Sequence[str], args: Sequence[str] = ()) -> ModelSettings:
    """The model as the gateway sees it: every engine is an endpoint.

    Args:
        model: as configured.
        kind: of its engines.
        urls: of its engines.
        args: with which they start, where only this gateway need know them; else those that the settings give.
    """
    assert model.engine is not None  # noqa: S101  # only asked for models with an engine
    known = kind.fronted(model.engine.model, args or _args(model, model.engine, kind))
    limits = {"max_num_seqs": known.max_num_seqs, "kv_tokens": known.kv_tokens}
    launched = [EndpointSettings.model_validate({"url": url, **limits}) for url in urls]
    return model.model_copy(
        update={
            "name": served_name(model),
            "chat_template": template_of(model, known.chat_template),
            "tokenizer": model.tokenizer or known.tokenizer,
            "endpoints": (*model.endpoints, *launched),
            "engine": None,
        }
    )


def _policy(engine: EngineSettings) -> Policy:
    return Policy(engine.start_timeout, engine.stop_timeout, engine.max_restarts, hung_timeout=engine.hung_timeout)


def _gateways(
    settings: Settings, listening: Sequence[socket.socket], launches: tuple[str, ...], owner: OwnerSocket | None
) -> Iterator[Gateway]:
    listens = tuple(f"--listen={opened.fileno()}" for opened in listening)
    fds = tuple(opened.fileno() for opened in listening)
    if owner is None:
        yield _gateway("gateway", settings, (*listens, *launches), fds)
        return
    fronts = owner.fronts
    shared = owner.listening.fileno()
    deciding = _gateway("owner", settings, (f"--owner={shared}", f"--fronts={fronts}", *launches), (shared,))
    policy = replace(deciding.policy, backoff=_OWNER_BACKOFF, max_restarts=_OWNER_RESTARTS)
    yield replace(deciding, role=Role.OWNER, policy=policy)
    of_front = _part(settings, fronts)
    for number in range(1, fronts + 1):
        front = _gateway(f"front {number}", of_front, (*listens, f"--owner-at={owner.path}", *launches), fds)
        yield replace(front, env={**front.env, KEY: owner.key.hex()})


def _gateway(name: str, settings: Settings, arguments: tuple[str, ...], fds: tuple[int, ...]) -> Gateway:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    return Gateway(
        name=name,
        role=Role.GATEWAY,
        argv=(sys.executable, "-P", "-m", "gateway.serve.child", *arguments),
        env=environment,
        stdin=_serialised(settings),
        fds=fds,
        tells=True,
        final_codes=frozenset({USAGE_ERROR}),
        policy=Policy(
            stop_timeout=settings.server.shutdown_timeout + _GATEWAY_EXTRA_STOP, steady_after=_GATEWAY_STEADY
        ),
        described=_code(),
        settings=settings,
    )


def _part(settings: Settings, fronts: int) -> Settings:
    """The settings of one of so many fronts: its part of the limits that are for all together."""
    server, counting, upstream, queue = (
        settings.server,
        settings.counting,
        settings.upstream,
        settings.admission.queue,
    )

    def part(whole: int) -> int:
        return -(-whole // fronts)

    most = None if server.max_connections is None else part(server.max_connections)
    return settings.model_copy(
        update={
            "server": server.model_copy(update={"max_connections": most, "workers": fronts}),
            "counting": counting.model_copy(update={"max_pending_bytes": part(counting.max_pending_bytes)}),
            "upstream": upstream.model_copy(update={"relay_concurrency": part(upstream.relay_concurrency)}),
            "admission": settings.admission.model_copy(
                update={"queue": queue.model_copy(update={"max_bytes": part(queue.max_bytes)})}
            ),
        }
    )


def divided(gateway: Gateway, listening: Sequence[socket.socket], owner: OwnerSocket) -> list[Gateway]:
    """An owner and its fronts for what one gateway did alone, with its settings."""
    return list(_gateways(gateway.settings, listening, tuple(_launched(gateway).values()), owner))


def knowing(gateway: Gateway, before: Gateway) -> Gateway:
    """The same gateway, which also knows how those of its endpoints come and go that only the one before it knew."""
    known, configured = _launched(gateway), [at.address for model in gateway.settings.models for at in model.endpoints]
    more = (word for address, word in _launched(before).items() if address in configured and address not in known)
    return replace(gateway, argv=(*gateway.argv, *more))


def place_by(gateway: Gateway, engine: Engine) -> str:
    """The place of an engine by what a gateway knows; the one that it has itself, if the gateway does not know it."""
    word = _launched(gateway).get(engine.spec.address)
    how = None if word is None else from_words([word.removeprefix(_LAUNCHED)])[engine.spec.address]
    return engine.place if how is None else how.place


def agrees(gateway: Gateway, other: Gateway) -> bool:
    """Whether a gateway knows how the engines of another come and go, as that one does."""
    return _launched(gateway).items() >= _launched(other).items()


def _launched(gateway: Gateway) -> dict[str, str]:
    """The words of its command line for engines, by their addresses."""
    words = [word for word in gateway.argv if word.startswith(_LAUNCHED)]
    return {address: word for word in words for address in from_words([word.removeprefix(_LAUNCHED)])}


def telling(gateway: Gateway, settings: Settings) -> Gateway:
    """The same gateway, with other settings."""
    return replace(gateway, settings=settings, stdin=_serialised(settings))


def _serialised(settings: Settings) -> bytes:
    return json.dumps(revealed(settings)).encode()


def _code() -> str:
    """A digest of the code on disk now. After an upgrade it differs from the running code's."""
    found = []
    for package in ("gateway", "engine"):
        for file in sorted(Path(__file__).parents[2].joinpath(package).rglob("*")):
            if file.suffix in {".py", ".so"}:
                stat = file.stat()
                found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
