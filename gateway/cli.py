"""The command line."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
import uvloop
import yaml
from rich.console import Console

import gateway
from engine.cache import SetupError
from engine.control import ControlError, Reload, ask
from engine.diagnosis.look import listener
from gateway.commands.advise import advise_command
from gateway.commands.demo import DemoError, demo
from gateway.commands.doctor import doctor_command
from gateway.commands.plan import plan_command
from gateway.commands.simulate import simulate
from gateway.config.settings import LogSettings, Settings
from gateway.config.sources import ConfigurationError, Sources, load, redacted
from gateway.ops.logs import configure, for_people
from gateway.record.lines import EventLogError
from gateway.record.replay import verify
from gateway.record.report import show, show_compared
from gateway.record.whatif import compare
from gateway.relay.server import PortTakenError
from gateway.runtime.interrupts import Stop, end_at_once
from gateway.serve.alone import Alone
from gateway.serve.checks import check, preflight
from gateway.serve.discovery import Discovery
from gateway.serve.engine_setup import debugged
from gateway.serve.gateway_process import alone, front, owner_process, run
from gateway.serve.launch import USAGE_ERROR, is_cut
from gateway.serve.reload import Deployment
from gateway.serve.served import Served
from gateway.serve.supervision_log import SupervisionLog, engine_logs

cli = typer.Typer(
    help="Admission control for vLLM: an OpenAI-compatible gateway that keeps its own account of the KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
DIFFERS = 1
"""Exit code of a replay whose decisions differ from the record's."""
_console = Console(stderr=True, highlight=False)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer's way
    if asked:
        print(f"kvgate {gateway.__version__}")
        raise typer.Exit


@cli.callback()
def _options(
    _version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None: ...


@cli.command()
def serve(
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id: launches a vLLM for it.")] = None,
    engine_args: Annotated[
        list[str] | None, typer.Argument(help="After `--`: arguments for vLLM, as `-- --max-model-len 8192`.")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="URL of a vLLM that runs already; may be given several times.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or hub id of the tokenizer.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="File of the chat template that the engine uses; else the tokenizer's own.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port for clients.")] = None,
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
    listening = {"host": host, "port": port, "admin_port": admin_port, "workers": workers}
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
        return debugged(settings) if debug_engine else settings

    sources = Sources(flags, config, checked)
    settings = _load(flags, config)
    if not settings.models:
        _fail(
            "nothing to serve: name a MODEL to launch, an --endpoint URL that runs already, or a --config file "
            "with `models`"
        )
    try:
        settings = sources.finished(settings)
    except ConfigurationError as error:
        _fail(str(error))
    sys.exit(_serve(settings, sources, verbose=verbose))


@cli.command()
def reload(
    config: Annotated[Path | None, typer.Option(help="Another YAML file than the one kvgate was started with.")] = None,
    port: Annotated[int | None, typer.Option(help="Of which kvgate, where several run here.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting to change until the next reload, as admission.mode=observe; may be repeated."
        ),
    ] = None,
) -> None:
    """Have the kvgate that runs here change over to its settings as they are now; no request fails for it."""
    request = Reload(str(config.resolve()) if config is not None else None, _changes(change or []))
    signal.signal(signal.SIGINT, partial(end_at_once, said=b"the reload goes on; kvgate's own log tells how it ends"))
    try:
        sys.exit(ask(request, port, lambda line: _console.print(line, markup=False, soft_wrap=True)))
    except ControlError as error:
        _fail(str(error))


@cli.command(name="demo")
def run_demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for clients.")] = 8080,
    once: Annotated[bool, typer.Option("--once", help="Stop after the answer.")] = False,  # noqa: FBT002
) -> None:
    """Run a small real chat model on a real vLLM behind kvgate; sets up what is missing, once."""
    try:
        sys.exit(demo(_console, host, port, once=once))
    except PortTakenError as error:
        _fail(_with_way_out(error))
    except (SetupError, DemoError, ConfigurationError) as error:
        _fail(str(error))


@cli.command("check-config")
def check_config(
    config: Annotated[Path | None, typer.Argument(help="YAML file with settings.")] = None,
    everything: Annotated[  # noqa: FBT002
        bool, typer.Option("--all", help="Print all settings, also those that are at their defaults.")
    ] = False,
) -> None:
    """Check the settings from file and environment, and print those that differ from the defaults, secrets redacted."""
    settings = _load({}, config)
    try:
        check(settings)
    except ConfigurationError as error:
        _fail(str(error))
    print(yaml.safe_dump(redacted(settings, defaults=everything), sort_keys=False), end="")


cli.command(name="doctor")(doctor_command)
cli.command()(simulate)
cli.command("advise")(advise_command)


cli.command("plan")(plan_command)


@cli.command()
def replay(
    file: Annotated[Path, typer.Argument(help="An event log, as `--event-log` writes it.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting to change, as admission.kv_high=0.95; may be given several times."),
    ] = None,
) -> None:
    """Decide again what a gateway recorded, and say what differs: nothing should, or what --set would have changed."""
    out = Console(highlight=False, markup=False)
    try:
        if change:
            show_compared(compare(file, _changes(change, "admission")["admission"]), change, out)
            return
        replayed = verify(file)
    except (EventLogError, ConfigurationError) as error:
        _fail(str(error))
    show(replayed, out)
    sys.exit(DIFFERS if replayed.differences else 0)


@cli.command()
def version() -> None:
    """Print the version."""
    print(f"kvgate {gateway.__version__}")


@cli.command(hidden=True, name="gateway")
def gateway_process(
    listen: Annotated[list[int] | None, typer.Option(help="Descriptor of a socket to accept connections from.")] = None,
    launched: Annotated[list[str] | None, typer.Option(help="Address of an engine that the supervisor starts.")] = None,
    owner_at: Annotated[Path | None, typer.Option(help="Socket of the owner, for a front.")] = None,
    owner: Annotated[int | None, typer.Option(help="Descriptor of that socket, for the owner.")] = None,
    fronts: Annotated[int, typer.Option(help="Fronts that the owner waits for.")] = 0,
) -> None:
    """Run the gateway, a front or the owner, with resolved settings read from stdin: what the supervisor starts."""
    settings = Settings.model_validate(json.load(sys.stdin))
    make: Callable[[], Served]
    if owner is not None:
        make = partial(owner_process, settings, owner, fronts, launched or [])
    elif owner_at is not None:
        make = partial(front, settings, listen or [], owner_at)
    else:
        make = partial(alone, settings, listen or [], launched or [])
    sys.exit(_run(make, settings, supervised=True))


def main() -> None:
    """Run the command line."""
    cli()


def _models(
    model: str | None, engine_args: list[str], endpoints: list[str], given: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    if (model is not None and model.startswith("-")) or (model is None and engine_args):
        words = " ".join([*([model] if model is not None else []), *engine_args])
        _fail(
            f"arguments for vLLM need a MODEL to launch it for: kvgate serve MODEL -- {words}; in a file they are "
            "`args` of the engine"
        )
    of_model = {name: value for name, value in given.items() if value is not None}
    if model is None and not endpoints:
        for name in of_model:
            _fail(f"--{name.replace('_', '-')} goes with MODEL or --endpoint; in a file it is a key of the model")
        return []
    entry: dict[str, Any] = {"endpoints": [{"url": url} for url in endpoints]}
    if model is not None:
        entry["engine"] = {"model": model, "args": engine_args}
    return [entry | of_model]


def _changes(given: list[str], only: str | None = None) -> dict[str, Any]:
    """Nested settings from `--set`: of any section, or of only one."""
    changes: dict[str, Any] = {}
    for change in given:
        name, equals, value = change.partition("=")
        path = name.split(".")
        if not equals or not all(path) or len(path) == 1 or only not in {None, path[0]}:
            _fail(f"--set {change}: expected {only or 'SECTION'}.SETTING=VALUE")
        try:
            written: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            _fail(f"--set {change}: the value cannot be read")
        inner = changes
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                _fail(f"--set {change}: {part} was set to a value before")
        inner[path[-1]] = written
    return changes


def _load(flags: dict[str, Any], config: Path | None) -> Settings:
    try:
        return load(flags, config)
    except ConfigurationError as error:
        _fail(str(error))


def _serve(settings: Settings, sources: Sources, *, verbose: bool) -> int:
    discovery = Discovery(settings)
    asyncio.run(discovery.begin())
    if all(model.engine is None for model in settings.models) and not is_cut(settings):
        reloads = partial(Alone, sources=sources, discovery=discovery)
        return _run(partial(alone, discovery.settings), settings, reloads)

    from gateway.serve.foresight import foreseen  # noqa: PLC0415 - other commands start without the planner

    configure(settings.log)
    people = for_people(settings.log)
    log = SupervisionLog(engine_logs(settings.server.port) if people and not verbose else None, for_people=people)
    try:
        preflight(settings)
        for line in foreseen(settings):
            log.say(line)
        deployment = Deployment(discovery, sources.read, log, log.say)
    except PortTakenError as error:
        _fail(_with_way_out(error), settings.log)
    except (ConfigurationError, SetupError) as error:
        _fail(str(error), settings.log)
    code = asyncio.run(_supervise(deployment, settings, log))
    log.last_words()
    return code


async def _supervise(deployment: Deployment, settings: Settings, log: SupervisionLog) -> int:
    stop = Stop(asyncio.Event(), lambda: log.say(_stopping(settings)))
    stop.listen(asyncio.get_running_loop())
    return await deployment.run(stop.event) or stop.code


def _stopping(settings: Settings) -> str:
    requests, engines = (
        settings.server.shutdown_timeout,
        max((model.engine.stop_timeout for model in settings.models if model.engine is not None), default=None),
    )
    have = f"requests have {requests:g} s" + (f", engines {engines:g} s" if engines is not None else "")
    return f"stopping: {have}; Ctrl-C again ends it now"


def _run(
    make: Callable[[], Served],
    settings: Settings,
    reloads: Callable[[Served], Alone] | None = None,
    *,
    supervised: bool = False,
) -> int:
    configure(settings.log)

    try:
        code: int = uvloop.run(run(make, reloads, supervised=supervised))
    except PortTakenError as error:
        _fail(_with_way_out(error), settings.log)
    except (ConfigurationError, ValueError) as error:
        _fail(str(error), settings.log)
    return code


def _with_way_out(error: PortTakenError) -> str:
    taken = listener(error.port)
    if taken is None:  # the address is not this machine's, or the port needs privileges
        other = "--host and --port" if error.option == "--port" else error.option
        return f"{error}\nListen somewhere else with {other}."
    who = f"{taken.name} (process {taken.pid})" if taken.pid is not None else "a process of another user"
    return f"{error}: {who} listens there\nEnd it, or listen somewhere else with {error.option}."


def _fail(message: str, log: LogSettings | None = None) -> NoReturn:
    """Print the error, as a line of JSON if the log is JSON, and exit."""
    if log is not None and not for_people(log):
        structlog.get_logger("kvgate").error(message)
        sys.exit(USAGE_ERROR)
    for line in message.splitlines():
        _console.print(f"kvgate: {line}", markup=False, soft_wrap=True)
    sys.exit(USAGE_ERROR)


if __name__ == "__main__":
    main()
