"""The entry point: Ctrl-C is answered from here on, before the rest is imported, which takes a second."""

import signal

from gateway.interrupts import end_at_once


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, end_at_once)
    from gateway.cli import main as run  # noqa: PLC0415 - after the handler

    run()


if __name__ == "__main__":
    main()
