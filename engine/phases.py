"""PURE. The phases of an engine's start, read from its log.

The texts are those of vLLM 0.32, plus older forms where they differ.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from engine.loglines import parse


class Phase(IntEnum):
    """The phases of a start, in order. A start may skip some."""

    IMPORTING = 0
    CONFIGURING = 1
    DOWNLOADING = 2
    LOADING = 3
    COMPILING = 4
    PROFILING = 5
    CAPTURING = 6
    SERVING = 7

    @property
    def title(self) -> str:
        """The name shown to people."""
        return _TITLES[self]


_TITLES = {
    Phase.IMPORTING: "importing vLLM",
    Phase.CONFIGURING: "reading the model's configuration",
    Phase.DOWNLOADING: "downloading the model",
    Phase.LOADING: "loading weights",
    Phase.COMPILING: "compiling",
    Phase.PROFILING: "sizing the KV cache",
    Phase.CAPTURING: "capturing CUDA graphs",
    Phase.SERVING: "serving",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase and its detail: a percentage, the size of the KV cache, or nothing."""

    phase: Phase
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.phase.title}: {self.detail}" if self.detail else self.phase.title


# Pattern -> phase, and the detail with the pattern's groups filled in. The first match counts.
_SIGNS: tuple[tuple[re.Pattern[str], Phase, str], ...] = tuple(
    (re.compile(pattern), phase, detail)
    for pattern, phase, detail in (
        (r"non-default args:|Resolved architecture:", Phase.CONFIGURING, ""),
        (r"^Fetching \d+ files: +(\d+)%|\.safetensors: +(\d+)%", Phase.DOWNLOADING, r"{}%"),
        (r"Starting to load model ", Phase.LOADING, ""),
        (r"Loading (?:safetensors|pt) checkpoint shards: +(\d+)%", Phase.LOADING, r"{}%"),
        (r"Dynamo bytecode transform|Compiling a graph|Cache the graph", Phase.COMPILING, ""),
        (r"Available KV cache memory: ([\d.]+ GiB)", Phase.PROFILING, r"{} to hold it"),
        (r"KV cache size: ([\d,]+) tokens", Phase.PROFILING, r"{} tokens"),
        (r"Capturing [^:]*CUDA graphs?[^:]*: +(\d+)%", Phase.CAPTURING, r"{}%"),
        (r"Starting vLLM (?:API )?server .*on (http\S+)", Phase.SERVING, r"{}"),
    )
)


def read_progress(line: str) -> Progress | None:
    """Return the progress that a log line reports, or None."""
    text = parse(line).text
    for pattern, phase, detail in _SIGNS:
        if match := pattern.search(text):
            return Progress(phase, detail.format(*filter(None, match.groups())))
    return None


class StartProgress:
    """Follows one start. Phases never go back, and no progress is reported twice."""

    def __init__(self) -> None:
        self.current = Progress(Phase.IMPORTING)

    def read(self, line: str) -> Progress | None:
        """Return the progress that this line adds, if any."""
        seen = read_progress(line)
        if seen is None or seen == self.current or seen.phase < self.current.phase:
            return None
        self.current = seen
        return seen
