"""The process that a supervisor starts: a gateway, a front or the owner, with resolved settings read from stdin.

Not for people, and no command of `kvgate`: it imports what its own role needs.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.runtime.importing import COLOURS, Importing


def main() -> None:
    """Entry point."""
    # In here: a process that counts imports this module again, and needs none of them.
    with Importing(without=COLOURS):
        from gateway.config.engine import from_words  # noqa: PLC0415
        from gateway.config.settings import Settings  # noqa: PLC0415
        from gateway.serve.lifetime import alone, front, owner_process  # noqa: PLC0415
        from gateway.serve.running import run_process  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m gateway.serve.child", description=__doc__)
    parser.add_argument("--listen", type=int, action="append", default=[], help="a socket to accept connections from")
    parser.add_argument("--launched", action="append", default=[], help="an engine of the supervisor's")
    parser.add_argument("--owner-at", type=Path, help="socket of the owner, for a front")
    parser.add_argument("--owner", type=int, help="descriptor of that socket, for the owner")
    parser.add_argument("--fronts", type=int, default=0, help="fronts that the owner waits for")
    given = parser.parse_args()
    settings = Settings.model_validate(json.load(sys.stdin))
    launched = from_words(given.launched)
    make: Callable[[], Any]
    if given.owner is not None:
        make = partial(owner_process, settings, given.owner, given.fronts, launched)
    elif given.owner_at is not None:
        make = partial(front, settings, given.listen, given.owner_at, launched)
    else:
        make = partial(alone, settings, given.listen, launched)
    sys.exit(run_process(make, settings, supervised=True))


if __name__ == "__main__":
    main()
