"""`kvgate serve`: its command line, and the way from there to the process that serves, or to those that do.

It imports what one gateway in this process needs, and nothing for other processes until it is to start some: a gateway
would keep that in memory for as long as it runs.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.config.sources import Sources, load
from gateway.ops.logs import configure, for_people
from gateway.runtime.failure import fail
from gateway.serve.alone import Alone
from gateway.serve.checks import check
from gateway.serve.discovery import Discovery
from gateway.serve.lifetime import alone
from gateway.serve.processes import is_cut
from gateway.serve.running import run_process

if TYPE_CHECKING:
    from gateway.serve.choice import Choices


def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="Model folder or hub id: launches a vLLM for it; a GGUF file: launches a llama-server."),
    ] = None,
    engine_args: Annotated[
        list[str] | None, typer.Argument(help="After `--`: arguments for the engine, as `-- --max-model-len 8192`.")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="URL of a vLLM that runs already, or unix:PATH of its socket; may be given several times."),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or hub id of the tokenizer.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="File of the chat template that the engine uses; else the tokenizer's own.")
    ] = None,
    llama_server: Annotated[
        str | None, typer.Option(help="The llama-server to launch for a GGUF file; else the one in PATH.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="`auto`: the first way to serve MODEL that fits this machine; see the docs.")
    ] = None,
    alternative: Annotated[
        list[str] | None,
        typer.Option(help="With --engine auto: another checkpoint of MODEL, as a quantized one or a GGUF file."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="With --engine auto: what may be of 8 bits or less: kv-cache, weights.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, or a unix socket, as unix:/run/kvgate/kvgate.sock.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port for clients.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) for clients, who then use https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    admin_port: Annotated[int | None, typer.Option(help="A port of its own for /metrics and /kvgate/*.")] = None,
    workers: Annotated[str | None, typer.Option(help="Processes that carry requests: a number, or `auto`.")] = None,
    event_log: Annotated[Path | None, typer.Option(help="File to append the core's events to, for replay.")] = None,
    tier_redis: Annotated[
        str | None, typer.Option(help="URL of the Redis by which several gateways agree which of them decides.")
    ] = None,
    tier_advertise: Annotated[str | None, typer.Option(help="HOST:PORT at which the others reach this one.")] = None,
    tier_key_file: Annotated[Path | None, typer.Option(help="File with the secret that they share.")] = None,
    debug_engine: Annotated[  # noqa: FBT002
        bool, typer.Option("--debug-engine", help="Start engines in their debug environment, which is slow.")
    ] = False,
    verbose: Annotated[  # noqa: FBT002
        bool, typer.Option("--verbose", help="On a terminal, show what engines print, rather than keep it in files.")
    ] = False,
) -> None:
    """Serve MODEL with an engine launched here, or front engines that run already."""
    listening = {"host": host, "port": port, "tls_cert": tls_cert, "tls_key": tls_key}
    listening |= {"admin_port": admin_port, "workers": workers}
    flags: dict[str, Any] = {"server": {name: value for name, value in listening.items() if value is not None}}
    if event_log is not None:
        flags["admission"] = {"event_log": event_log}
    tier = {"redis": tier_redis, "advertise": tier_advertise, "key_file": tier_key_file}
    flags["tier"] = {name: value for name, value in tier.items() if value is not None}
    given = {"tokenizer": tokenizer, "chat_template": chat_template}
    launch = {"model": model, "args": engine_args or [], "llama_server": llama_server}
    launch |= {"choice": engine, "alternatives": alternative, "quality": allow}
    if models := _models(launch, endpoint or [], given):
        flags["models"] = models

    def checked(settings: Settings) -> Settings:
        check(settings)
        if not _launches(settings):
            return settings

        from gateway.serve.engine_setup import debugged  # noqa: PLC0415 - a gateway alone starts without it
        from gateway.serve.fetch import with_local_models  # noqa: PLC0415 - likewise

        settings = choices().applied(with_local_models(settings))
        return debugged(settings) if debug_engine else settings

    @cache
    def choices() -> "Choices":
        from gateway.serve.choice import Choices  # noqa: PLC0415 - likewise
        from gateway.serve.choice_log import tell  # noqa: PLC0415

        configure(settings.log)
        return Choices(partial(tell, people=for_people(settings.log)))

    sources = Sources(flags, config, checked)
    settings = loaded(flags, config)
    if not settings.models:
        fail(
            "nothing to serve: name a MODEL to launch, an --endpoint URL that runs already, or a --config file "
            "with `models`"
        )
    try:
        settings = sources.finished(settings)
    except ConfigurationError as error:
        fail(str(error))
    sys.exit(_serve(settings, sources, choices, verbose=verbose))


def loaded(flags: dict[str, Any], config: Path | None) -> Settings:
    """The settings from flags, environment and file; exits if they cannot be used."""
    try:
        return load(flags, config)
    except ConfigurationError as error:
        fail(str(error))


_OF_ENGINE = {
    "--llama-server": "llama_server",
    "--engine": "choice",
    "--alternative": "alternatives",
    "--allow": "quality",
}
"""Flags that go with MODEL, and what they are in a file."""


def _models(engine: dict[str, Any], endpoints: list[str], given: Mapping[str, str | None]) -> list[dict[str, Any]]:
    model, engine_args = engine["model"], engine["args"]
    if (model is not None and model.startswith("-")) or (model is None and engine_args):
        words = " ".join([*([model] if model is not None else []), *engine_args])
        fail(
            f"arguments for an engine need a MODEL to launch it for: kvgate serve MODEL -- {words}; in a file they are "
            "`args` of the engine"
        )
    for flag, name in _OF_ENGINE.items():
        if model is None and engine[name] is not None:
            fail(f"{flag} goes with MODEL; in a file it is `{name}` of the engine")
    of_model = {name: value for name, value in given.items() if value is not None}
    if model is None and not endpoints:
        for name in of_model:
            fail(f"--{name.replace('_', '-')} goes with MODEL or --endpoint; in a file it is a key of the model")
        return []
    entry: dict[str, Any] = {"endpoints": [{"url": url} for url in endpoints]}
    if model is not None:
        entry["engine"] = {name: value for name, value in engine.items() if value is not None}
    return [entry | of_model]


def _serve(settings: Settings, sources: Sources, choices: "Callable[[], Choices]", *, verbose: bool) -> int:
    discovery = Discovery(settings)
    asyncio.run(discovery.begin())
    if not _launches(settings) and not is_cut(settings):
        reloads = partial(Alone, sources=sources, discovery=discovery)
        return run_process(partial(alone, discovery.settings), settings, reloads)

    from gateway.serve.supervising import supervise  # noqa: PLC0415 - a gateway alone starts without it

    return supervise(settings, sources, discovery, choices(), verbose=verbose)


def _launches(settings: Settings) -> bool:
    return any(model.engine is not None for model in settings.models)
