"""The reader of recorded traces: arrival times, prompt lengths and output lengths."""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from engine.plan.traffic import Seen, Traffic, TrafficError, from_lengths

_GZIP = b"\x1f\x8b"
_ENCODING = "utf-8-sig"


@dataclass(frozen=True, slots=True)
class _Columns:
    """One publisher's column names. `duration` is None if the trace has none."""

    at: str
    prompt: str
    output: str
    duration: str | None
    seconds: Callable[[str], float]
    """Reads `at`."""


def _azure_time(text: str) -> float:
    return datetime.fromisoformat(text[:26]).timestamp()


FORMATS = (
    # https://github.com/Azure/AzurePublicDataset, 2023 and 2024
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, _azure_time),
    # https://github.com/HPMLL/BurstGPT, releases 1 and 2
    _Columns("Timestamp", "Request tokens", "Response tokens", "Elapsed time", float),
    # our own
    _Columns("arrival", "prompt", "output", "duration", float),
)
"""The header tells the formats apart."""


def read_trace(file: Path) -> Traffic:
    """Traffic from a CSV file, gzip-compressed or not. Requests without an answer, which failed, are left out.

    Raises:
        TrafficError: it cannot be read, or is no trace of a known format.
    """
    try:
        with file.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
        with gzip.open(file, "rt", encoding=_ENCODING) if packed else file.open(encoding=_ENCODING) as text:
            return from_lengths(str(file), list(_requests(file, text)))
    except UnicodeDecodeError:
        raise TrafficError(f"{file}: expected a CSV file, this is no text") from None
    except OSError as error:
        raise TrafficError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise TrafficError(f"{file}: cannot be read, its compressed content is damaged: {error}") from None


def _requests(file: Path, text: IO[str]) -> Iterator[Seen]:
    rows = csv.reader(text)
    header = [name.strip() for name in next(rows, [])]
    columns = next((known for known in FORMATS if {known.at, known.prompt, known.output} <= {*header}), None)
    if columns is None:
        known = "; ".join(f"{each.at},{each.prompt},{each.output}" for each in FORMATS)
        found = ",".join(header)[:80]
        raise TrafficError(f"{file}: expected a trace with the columns {known}; its first line is {found!r}")
    at, prompt, output = (header.index(name) for name in (columns.at, columns.prompt, columns.output))
    duration = header.index(columns.duration) if columns.duration in header else None
    for row in rows:
        if not row:
            continue
        try:
            lasted = None if duration is None else float(row[duration])
            seen = Seen(columns.seconds(row[at]), int(float(row[prompt])), int(float(row[output])), lasted)
        except (ValueError, IndexError):
            raise TrafficError(
                f"{file}, line {rows.line_num}: expected {columns.at}, {columns.prompt} and {columns.output} in it, "
                f"found {','.join(row)[:80]!r}"
            ) from None
        if seen.output > 0:
            yield seen
