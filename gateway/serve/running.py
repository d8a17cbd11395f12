"""A gateway's process from its settings to its exit code, and the words in which it fails."""

import sys
from collections.abc import Callable
from typing import NoReturn

import structlog
import uvloop

from gateway.config.errors import ConfigurationError
from gateway.config.settings import LogSettings, Settings
from gateway.ops.logs import configure, for_people
from gateway.runtime.failure import USAGE_ERROR, fail
from gateway.serve.alone import Alone
from gateway.serve.lifetime import run
from gateway.serve.served import Served
from gateway.server.server import PortTakenError


def run_process(
    make: Callable[[], Served],
    settings: Settings,
    reloads: Callable[[Served], Alone] | None = None,
    *,
    supervised: bool = False,
) -> int:
    """Run what `make` makes to its end. Returns the exit code, or exits with one. See `lifetime.run`."""
    configure(settings.log)
    try:
        code: int = uvloop.run(run(make, reloads, supervised=supervised))
    except PortTakenError as error:
        fail_in_log(way_out(error), settings.log)
    except (ConfigurationError, ValueError) as error:
        fail_in_log(str(error), settings.log)
    return code


def way_out(error: PortTakenError) -> str:
    """The error, with who has the port and what to do."""
    from engine.diagnosis.look import listener, unix_listener  # noqa: PLC0415 - a gateway that serves needs no diagnosis

    taken = listener(error.port) if isinstance(error.port, int) else unix_listener(str(error.port))
    if taken is None:  # the address is not this machine's, or the port needs privileges
        other = "--host and --port" if error.option == "--port" else error.option
        return f"{error}\nListen somewhere else with {other}."
    who = f"{taken.name} (process {taken.pid})" if taken.pid is not None else "a process of another user"
    return f"{error}: {who} listens there\nEnd it, or listen somewhere else with {error.option}."


def fail_in_log(message: str, log: LogSettings) -> NoReturn:
    """Print the error, as a line of JSON if the log is JSON, and exit."""
    if for_people(log):
        fail(message)
    structlog.get_logger("kvgate").error(message)
    sys.exit(USAGE_ERROR)
