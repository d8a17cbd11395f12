"""The command line."""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

import gateway
from engine.cache import SetupError
from engine.control import ControlError, Reload, ask
from gateway.commands.advise import advise_command
from gateway.commands.demo import DemoEngine, DemoError, demo
from gateway.commands.doctor import doctor_command
from gateway.commands.plan import plan_command
from gateway.commands.simulate import simulate
from gateway.commands.top.command import top_command
from gateway.config.errors import ConfigurationError
from gateway.config.fields import is_loopback
from gateway.config.secrets import redacted
from gateway.record.lines import EventLogError
from gateway.record.replay import verify
from gateway.record.report import show, show_compared
from gateway.record.whatif import compare
from gateway.runtime.interrupts import end_at_once
from gateway.serve.checks import check
from gateway.serve.command import app, loaded, serve
from gateway.serve.running import fail, way_out
from gateway.server.server import PortTakenError

cli = app(completion=True)
cli.command()(serve)
DIFFERS = 1
"""Exit code of a replay whose decisions differ from the record's."""
_console = Console(stderr=True, highlight=False)


@cli.command()
def reload(
    config: Annotated[Path | None, typer.Option(help="Another YAML file than the one kvgate was started with.")] = None,
    port: Annotated[int | None, typer.Option(help="Of which kvgate, where several run here.")] = None,
    host: Annotated[str | None, typer.Option(help="Of which, by its unix socket.")] = None,
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
        sys.exit(ask(request, port or host, lambda line: _console.print(line, markup=False, soft_wrap=True)))
    except ControlError as error:
        fail(str(error))


@cli.command(name="demo")
def run_demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for clients.")] = 8080,
    once: Annotated[bool, typer.Option("--once", help="Stop after the answer.")] = False,  # noqa: FBT002
    engine: Annotated[DemoEngine, typer.Option(help="The engine that serves it.")] = DemoEngine.VLLM,
) -> None:
    """Run a small real chat model on a real engine behind kvgate; sets up what is missing, once."""
    try:
        sys.exit(demo(_console, host, port, once=once, engine=engine))
    except PortTakenError as error:
        fail(way_out(error))
    except (SetupError, DemoError, ConfigurationError) as error:
        fail(str(error))


@cli.command("check-config")
def check_config(
    config: Annotated[Path | None, typer.Argument(help="YAML file with settings.")] = None,
    everything: Annotated[  # noqa: FBT002
        bool, typer.Option("--all", help="Print all settings, also those that are at their defaults.")
    ] = False,
) -> None:
    """Check the settings from file and environment, and print those that differ from the defaults, secrets redacted."""
    from gateway.serve.turns import shared  # noqa: PLC0415 - only who launches engines needs it

    settings = loaded({}, config)
    try:
        check(settings)
    except ConfigurationError as error:
        fail(str(error))
    for line in shared(settings):
        print(f"# {line}")
    print(yaml.safe_dump(redacted(settings, defaults=everything), sort_keys=False), end="")


cli.command(name="doctor")(doctor_command)
cli.command()(simulate)
cli.command("advise")(advise_command)
cli.command("top")(top_command)


cli.command("plan")(plan_command)


@cli.command()
def replay(
    file: Annotated[Path, typer.Argument(help="An event log, as `--event-log` writes it.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting to change, as admission.kv_high=0.95; may be given several times."),
    ] = None,
    page: Annotated[  # noqa: FBT002
        bool, typer.Option("--page", help="Show it on a page in a browser instead, with --set both ways.")
    ] = False,
    host: Annotated[str, typer.Option(help="Loopback address of the page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 for a free one.")] = 8089,
) -> None:
    """Decide again what a gateway recorded, and say what differs: nothing should, or what --set would have changed."""
    out = Console(highlight=False, markup=False)
    if page and not is_loopback(host):
        fail(f"--host {host}: the page asks for no key, so it is shown on a loopback address alone")
    try:
        changes = _changes(change or [], "admission").get("admission", {})
        if page:
            from gateway.commands.replay_page import show_page  # noqa: PLC0415 - only the page needs a web server
            from gateway.record.series import pictured  # noqa: PLC0415

            out.print(f"taking pictures of {file}", soft_wrap=True)
            show_page(pictured(file, changes, change or []), host, port, out)
            return
        if change:
            show_compared(compare(file, changes), change, out)
            return
        replayed = verify(file)
    except (EventLogError, ConfigurationError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{host}:{port} cannot be listened on: {error.strerror}\nName another port with --port.")
    show(replayed, out)
    sys.exit(DIFFERS if replayed.differences else 0)


@cli.command()
def version() -> None:
    """Print the version."""
    print(f"kvgate {gateway.__version__}")


def main() -> None:
    """Run the command line."""
    cli()


def _changes(given: list[str], only: str | None = None) -> dict[str, Any]:
    """Nested settings from `--set`: of any section, or of only one."""
    changes: dict[str, Any] = {}
    for change in given:
        name, equals, value = change.partition("=")
        path = name.split(".")
        if not equals or not all(path) or len(path) == 1 or only not in {None, path[0]}:
            fail(f"--set {change}: expected {only or 'SECTION'}.SETTING=VALUE")
        try:
            written: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            fail(f"--set {change}: the value cannot be read")
        inner = changes
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                fail(f"--set {change}: {part} was set to a value before")
        inner[path[-1]] = written
    return changes


if __name__ == "__main__":
    main()
