"""PURE. The phases of an engine's start, read from its log."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from engine.loglines import parse


class StartPhase(IntEnum):
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
    StartPhase.IMPORTING: "loading its program",
    StartPhase.CONFIGURING: "reading the model's configuration",
    StartPhase.DOWNLOADING: "downloading the model",
    StartPhase.LOADING: "loading weights",
    StartPhase.COMPILING: "compiling",
    StartPhase.PROFILING: "sizing the KV cache",
    StartPhase.CAPTURING: "capturing CUDA graphs",
    StartPhase.SERVING: "serving",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase and its detail: a percentage, the size of the KV cache, or nothing."""

    phase: StartPhase
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.phase.title}: {self.detail}" if self.detail else self.phase.title


PhaseSign = tuple[re.Pattern[str], StartPhase, str]
"""A pattern in the text of a log line, the phase that it shows, and the detail, with the pattern's groups filled in."""


def signs(*rows: tuple[str, StartPhase, str]) -> tuple[PhaseSign, ...]:
    """The signs of a kind of engine. The first match counts."""
    return tuple((re.compile(pattern), phase, detail) for pattern, phase, detail in rows)


VLLM_SIGNS = signs(
    (r"non-default args:|Resolved architecture:", StartPhase.CONFIGURING, ""),
    (r"^Fetching \d+ files: +(\d+)%|\.safetensors: +(\d+)%", StartPhase.DOWNLOADING, r"{}%"),
    (r"Starting to load model ", StartPhase.LOADING, ""),
    (r"Loading (?:safetensors|pt) checkpoint shards: +(\d+)%", StartPhase.LOADING, r"{}%"),
    (r"Dynamo bytecode transform|Compiling a graph|Cache the graph", StartPhase.COMPILING, ""),
    (r"Available KV cache memory: ([\d.]+ GiB)", StartPhase.PROFILING, r"{} to hold it"),
    (r"KV cache size: ([\d,]+) tokens", StartPhase.PROFILING, r"{} tokens"),
    (r"Capturing [^:]*CUDA graphs?[^:]*: +(\d+)%", StartPhase.CAPTURING, r"{}%"),
    (r"Starting vLLM (?:API )?server .*on (http\S+)", StartPhase.SERVING, r"{}"),
)
"""Of vLLM 0.32, plus older forms where they differ."""


def read_progress(line: str, known: Sequence[PhaseSign]) -> Progress | None:
    """Return the progress that a log line reports by one of the known signs, or None."""
    text = parse(line).text
    for pattern, phase, detail in known:
        if match := pattern.search(text):
            return Progress(phase, detail.format(*filter(None, match.groups())))
    return None


class StartProgress:
    """Follows one start. Phases never go back, and no progress is reported twice.

    Args:
        known: The signs of the engine's kind.
    """

    def __init__(self, known: Sequence[PhaseSign]) -> None:
        self._known = known
        self.current = Progress(StartPhase.IMPORTING)

    def read(self, line: str) -> Progress | None:
        """Return the progress that this line adds, if any."""
        seen = read_progress(line, self._known)
        if seen is None or seen == self.current or seen.phase < self.current.phase:
            return None
        self.current = seen
        return seen
