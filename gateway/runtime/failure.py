"""The end of a command that cannot be carried out as it was given."""

import sys
from typing import NoReturn

USAGE_ERROR = 2
"""Exit code when kvgate cannot run as configured and another try would not help."""


def fail(message: str) -> NoReturn:
    """Print the error for people, and exit."""
    for line in message.splitlines():
        sys.stderr.write(f"kvgate: {line}\n")
    sys.exit(USAGE_ERROR)
