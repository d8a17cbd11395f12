"""Clocks: a test's own, and that of upper bounds, as a machine that is busy with something else may be slow."""

import time
from dataclasses import dataclass
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
"""The kernel's account of the time for which something that could run had to wait for a CPU."""


@dataclass
class Clock:
    """It shows what the test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def unhindered() -> float:
    """Seconds, of which none pass while anything on this machine waits for a CPU.

    On an idle machine the usual clock. Lower bounds need the usual one.
    """
    try:
        waited = int(PRESSURE.read_text().partition("total=")[2].split()[0]) / 1e6
    except (OSError, IndexError):  # a kernel that keeps no account
        waited = 0.0
    return time.monotonic() - waited
