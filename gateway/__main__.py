"""The entry point: signals are answered from here on, before the rest is imported, which takes up to a second."""

import signal
import sys

from gateway.runtime.importing import COLOURS, Importing
from gateway.runtime.interrupts import early, end_at_once


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, end_at_once)
    serves = sys.argv[1:2] == ["serve"]
    with Importing(without=COLOURS if serves else ()):
        if serves:
            early.listen()
        from gateway.cli import command_line  # noqa: PLC0415 - after the handler

        run = command_line(*sys.argv[1:2])
    run()


if __name__ == "__main__":
    main()
