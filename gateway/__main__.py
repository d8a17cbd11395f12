"""The entry point: signals are answered from here on, before the rest is imported, which takes a second."""

import signal
import sys

from gateway.runtime.importing import Importing
from gateway.runtime.interrupts import early, end_at_once


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, end_at_once)
    with Importing():
        if sys.argv[1:2] == ["serve"]:
            early.listen()
            from gateway.serve.command import main as run  # noqa: PLC0415 - after the handler, and no other command
        else:
            from gateway.cli import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
