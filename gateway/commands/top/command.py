"""The command line of `kvgate top`."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gateway.runtime.failure import fail

if TYPE_CHECKING:
    from gateway.commands.top.following import Kvgate

DEFAULT_URL = "http://127.0.0.1:8080"
_PIPED_WIDTH = 160
"""Characters of a line for another program."""


def top_command(
    url: Annotated[str, typer.Option(help="A kvgate that runs, where its admin routes are.")] = DEFAULT_URL,
    admin_key: Annotated[str | None, typer.Option(envvar="KVGATE_AUTH__ADMIN_KEY", help="Its admin key.")] = None,
    admin_key_file: Annotated[
        Path | None, typer.Option(envvar="KVGATE_AUTH__ADMIN_KEY_FILE", help="File with its admin key.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, as tables.")] = False,  # noqa: FBT002
) -> None:
    """Show the load of a running kvgate: KV cache, queue and requests, as they change."""
    from gateway.commands.top.following import Kvgate, RefusedError  # noqa: PLC0415 - other commands start without it

    try:
        if admin_key is None and admin_key_file is not None:
            admin_key = admin_key_file.read_text()
        kvgate = Kvgate(url, admin_key)
        if once:
            asyncio.run(_once(kvgate))
            return
        if find_spec("textual") is None:
            fail("the live view needs textual: pip install 'kvgate[top]'. `kvgate top --once` does without.")
        from gateway.commands.top.screen import Top  # noqa: PLC0415 - an extra

        if refused := Top(kvgate).run():
            fail(refused)
    except OSError as error:
        fail(f"{admin_key_file} cannot be read: {error.strerror}")
    except RefusedError as error:
        fail(str(error))


async def _once(kvgate: "Kvgate") -> None:
    from gateway.commands.top.once import show  # noqa: PLC0415 - see above

    async with kvgate:
        picture = await kvgate.picture()
    out = Console(highlight=False, markup=False)
    if not out.is_terminal:
        out = Console(highlight=False, markup=False, width=_PIPED_WIDTH)
    show(picture, out)
