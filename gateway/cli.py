"""The command line: a table of its commands, of which a start imports the one that is asked for."""

from importlib import import_module
from typing import Annotated

import typer

import gateway

COMMANDS = {
    "serve": "gateway.serve.command:serve",
    "reload": "gateway.commands.reload:reload_command",
    "demo": "gateway.commands.demo:demo_command",
    "check-config": "gateway.commands.check_config:check_config_command",
    "doctor": "gateway.commands.doctor:doctor_command",
    "simulate": "gateway.commands.simulate:simulate",
    "advise": "gateway.commands.advise:advise_command",
    "top": "gateway.commands.top.command:top_command",
    "plan": "gateway.commands.plan:plan_command",
    "replay": "gateway.commands.replay:replay_command",
    "version": "gateway.cli:version",
}
"""The function of each, and its module."""


def command_line(*asked: str) -> typer.Typer:
    """The command line of kvgate: with the commands among the words that were asked for, or with all, to show them."""
    some = [word for word in asked if word in COMMANDS]
    made = typer.Typer(
        help="Admission control for vLLM: an OpenAI-compatible gateway that keeps its own account of the KV cache.",
        no_args_is_help=True,
        add_completion=not some,
        pretty_exceptions_enable=False,
    )
    made.callback()(_options)
    for name in some or COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        made.command(name)(getattr(import_module(module), function))
    return made


def version() -> None:
    """Print the version."""
    print(f"kvgate {gateway.__version__}")


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer's way
    if asked:
        version()
        raise typer.Exit


def _options(
    _version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None: ...
