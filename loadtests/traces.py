"""The reader of recorded traces: arrival times, prompt lengths and output lengths."""

import csv
import gzip
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

TRACES = Path(__file__).parent / "traces"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace."""

    at: float
    """Seconds after the first."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens."""


@cache
def read_trace(file: str) -> tuple[Row, ...]:
    """Read a trace of Azure's columns, gzip-compressed or not, by its name or its absolute path.

    Raises:
        FileNotFoundError: neither the file nor its .gz exists.
    """
    path = TRACES / file
    packed = path.with_name(f"{path.name}.gz")
    with gzip.open(packed, "rt") if packed.exists() else path.open() as lines:
        rows = list(csv.DictReader(lines))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return tuple(
        Row((at - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in zip(times, rows, strict=True)
    )
