"""`kvgate replay`: what a gateway recorded, decided again."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.commands.changes import changes
from gateway.config.errors import ConfigurationError
from gateway.config.fields import is_loopback
from gateway.record.lines import EventLogError
from gateway.record.replay import verify
from gateway.record.report import show, show_compared
from gateway.record.whatif import compare
from gateway.runtime.failure import fail

DIFFERS = 1
"""Exit code of a replay whose decisions differ from the record's."""


def replay_command(
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
        changed = changes(change or [], "admission").get("admission", {})
        if page:
            from gateway.commands.replay_page import show_page  # noqa: PLC0415 - only the page needs a web server
            from gateway.record.series import pictured  # noqa: PLC0415

            out.print(f"taking pictures of {file}", soft_wrap=True)
            show_page(pictured(file, changed, change or []), host, port, out)
            return
        if change:
            show_compared(compare(file, changed), change, out)
            return
        replayed = verify(file)
    except (EventLogError, ConfigurationError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{host}:{port} cannot be listened on: {error.strerror}\nName another port with --port.")
    show(replayed, out)
    sys.exit(DIFFERS if replayed.differences else 0)
