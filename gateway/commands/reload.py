"""`kvgate reload`: has the kvgate that runs here change over to other settings."""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engine.control import ControlError, Reload, ask
from gateway.commands.changes import changes
from gateway.runtime.failure import fail
from gateway.runtime.interrupts import end_at_once


def reload_command(
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
    console = Console(stderr=True, highlight=False)
    request = Reload(str(config.resolve()) if config is not None else None, changes(change or []))
    signal.signal(signal.SIGINT, partial(end_at_once, said=b"the reload goes on; kvgate's own log tells how it ends"))
    try:
        sys.exit(ask(request, port or host, lambda line: console.print(line, markup=False, soft_wrap=True)))
    except ControlError as error:
        fail(str(error))
