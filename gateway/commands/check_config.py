"""`kvgate check-config`: the settings, checked and printed."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from gateway.config.errors import ConfigurationError
from gateway.config.secrets import redacted
from gateway.runtime.failure import fail
from gateway.serve.checks import check
from gateway.serve.command import loaded
from gateway.serve.turns import shared


def check_config_command(
    config: Annotated[Path | None, typer.Argument(help="YAML file with settings.")] = None,
    everything: Annotated[  # noqa: FBT002
        bool, typer.Option("--all", help="Print all settings, also those that are at their defaults.")
    ] = False,
) -> None:
    """Check the settings from file and environment, and print those that differ from the defaults, secrets redacted."""
    settings = loaded({}, config)
    try:
        check(settings)
    except ConfigurationError as error:
        fail(str(error))
    for line in shared(settings):
        print(f"# {line}")
    print(yaml.safe_dump(redacted(settings, defaults=everything), sort_keys=False), end="")
