"""`kvgate serve`: its command line, and the way from there to the process that serves, or to those that do.

It imports what one gateway in this process needs, and nothing for other processes until it is to start some: a gateway
would keep that in memory for as long as it runs.
"""

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import gateway
from gateway.config.settings import Settings
from gateway.config.sources import ConfigurationError, Sources, load
from gateway.serve.alone import Alone
from gateway.serve.checks import check
from gateway.serve.discovery import Discovery
from gateway.serve.gateway_process import alone
from gateway.serve.processes import is_cut
from gateway.serve.running import fail, run_process


def app() -> typer.Typer:
    """The command line of kvgate, without a command."""
    made = typer.Typer(
        help="Admission control for vLLM: an OpenAI-compatible gateway that keeps its own account of the KV cache.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    made.callback()(_options)
    return made


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer's way
    if asked:
        print(f"kvgate {gateway.__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None: ...


def serve(
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id: launches a vLLM for it.")] = None,
    engine_args: Annotated[
        list[str] | None, typer.Argument(help="After `--`: arguments for vLLM, as `-- --max-model-len 8192`.")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="URL of a vLLM that runs already, or unix:PATH of its socket; may be given several times."),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or hub id of the tokenizer.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="File of the chat template that the engine uses; else the tokenizer's own.")
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
        bool, typer.Option("--debug-engine", help="Start engines in vLLM's debug environment, which is slow.")
    ] = False,
    verbose: Annotated[  # noqa: FBT002
        bool, typer.Option("--verbose", help="On a terminal, show what engines print, rather than keep it in files.")
    ] = False,
) -> None:
    """Serve MODEL with a vLLM launched here, or front vLLMs that run already."""
    listening = {"host": host, "port": port, "tls_cert": tls_cert, "tls_key": tls_key}
    listening |= {"admin_port": admin_port, "workers": workers}
    flags: dict[str, Any] = {"server": {name: value for name, value in listening.items() if value is not None}}
    if event_log is not None:
        flags["admission"] = {"event_log": event_log}
    tier = {"redis": tier_redis, "advertise": tier_advertise, "key_file": tier_key_file}
    flags["tier"] = {name: value for name, value in tier.items() if value is not None}
    given = {"tokenizer": tokenizer, "chat_template": chat_template}
    if models := _models(model, engine_args or [], endpoint or [], given):
        flags["models"] = models

    def checked(settings: Settings) -> Settings:
        check(settings)
        if not debug_engine:
            return settings

        from gateway.serve.engine_setup import debugged  # noqa: PLC0415 - a gateway alone starts without it

        return debugged(settings)

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
    sys.exit(_serve(settings, sources, verbose=verbose))


def main() -> None:
    """Run the command line with this command alone."""
    only = app()
    only.command()(serve)
    only()


def loaded(flags: dict[str, Any], config: Path | None) -> Settings:
    """The settings from flags, environment and file; exits if they cannot be used."""
    try:
        return load(flags, config)
    except ConfigurationError as error:
        fail(str(error))


def _models(
    model: str | None, engine_args: list[str], endpoints: list[str], given: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    if (model is not None and model.startswith("-")) or (model is None and engine_args):
        words = " ".join([*([model] if model is not None else []), *engine_args])
        fail(
            f"arguments for vLLM need a MODEL to launch it for: kvgate serve MODEL -- {words}; in a file they are "
            "`args` of the engine"
        )
    of_model = {name: value for name, value in given.items() if value is not None}
    if model is None and not endpoints:
        for name in of_model:
            fail(f"--{name.replace('_', '-')} goes with MODEL or --endpoint; in a file it is a key of the model")
        return []
    entry: dict[str, Any] = {"endpoints": [{"url": url} for url in endpoints]}
    if model is not None:
        entry["engine"] = {"model": model, "args": engine_args}
    return [entry | of_model]


def _serve(settings: Settings, sources: Sources, *, verbose: bool) -> int:
    discovery = Discovery(settings)
    asyncio.run(discovery.begin())
    if all(model.engine is None for model in settings.models) and not is_cut(settings):
        reloads = partial(Alone, sources=sources, discovery=discovery)
        return run_process(partial(alone, discovery.settings), settings, reloads)

    from gateway.serve.supervising import supervise  # noqa: PLC0415 - a gateway alone starts without it

    return supervise(settings, sources, discovery, verbose=verbose)
