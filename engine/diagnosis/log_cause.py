"""PURE. The cause of an engine's failure, read from its log.

vLLM ends every failed start with the same two lines, "Engine core initialization failed. See root cause above." and
a traceback of the process that waited. The cause is the first real error, many lines earlier. In order of precedence:

1. A sign that names a cause. Of several, the first in the log, since later failures follow from it.
2. A kill from outside (SIGKILL): no earlier error did that.
3. The first remaining error: a sign of an effect (`Weight.EFFECT`), or an unknown error. If the effect was raised from
   an unknown error, the effect is reported as the cause, with that error as its evidence.
4. The last words that every failed run has (`Weight.TAIL`).

If the engine had served, only the lines that `serving.of_the_end` leaves count. A log without a line of an engine's
or kvgate's is a client's: its connection errors are about the way to its server.
"""

import contextlib
import json
import re
import signal
from collections import defaultdict, deque
from collections.abc import Iterable, Reversible, Sequence
from dataclasses import dataclass, field, replace

from engine.diagnosis import serving
from engine.diagnosis.sign import Diagnosis, Kind, Sign, Weight
from engine.diagnosis.signs import client
from engine.diagnosis.signs.death import SIGNALS
from engine.diagnosis.table import SIGNS
from engine.loglines import LogLine, parse

_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?:: |$)|Exception: |Value error, |\S+: error: |"
    r"Fatal "
)
_GENERIC = re.compile(
    r"\d+ validation errors? for |See root cause above|EngineCore failed to start|WorkerProc failed to start"
    r"|WorkerProc initialization failed|EngineCore encountered |EngineDeadError|died unexpectedly|exited unexpectedly"
    r"|Worker failed with error|died with exit code"
)
_TRACEBACK = "Traceback (most recent call last)"
_RAISED_FROM = re.compile(
    r"^(?:The above exception was the direct cause of the following|During handling of the above) "
)
_LONGEST = 600
"""Characters of a line that are searched and shown. One line of vLLM's lists every architecture it knows."""
ENOUGH_OF_A_LINE = 1_024
"""Characters of a raw line that `diagnose` needs: `_LONGEST` of its text, and what stands before that."""
_DEEPEST = 400
"""Lines of a stack to keep."""
_SOURCE = re.compile(r"^ {4}")
_START = re.compile(
    r"vLLM (?:API )?server version|Initializing a V\d LLM engine \(v|Initializing an LLM engine \(v|"
    r"common_params_print_info: verbosity"
)
_KVGATE = re.compile(r'\d\d:\d\d:\d\d  |.*"event":"[^"]*","level":"\w+","timestamp":"[^"]*"\}$')
"""A line of kvgate's own, on a terminal or as JSON."""


class _Signs:
    """A group of signs. Each is searched for by itself: all in one pattern take twice as long."""

    def __init__(self, signs: Iterable[Sign]) -> None:
        self._each = tuple((sign, re.compile(sign.pattern)) for sign in signs)

    def first(self, text: str, frames: Iterable[str]) -> tuple[Sign, Diagnosis] | None:
        """The first sign that a line, with the stack above it, shows."""
        shown = [sign for sign, pattern in self._each if pattern.search(text)]
        stack = "\n".join(frames) if shown else ""
        return next(((sign, read) for sign in shown if (read := sign.read(text, stack)) is not None), None)


_HEAVY = _Signs(sign for sign in SIGNS if sign.weight is not Weight.HINT and sign.kind is not Kind.CLIENT)
_AT_WORK = _Signs(sign for sign in SIGNS if sign.weight is not Weight.HINT and sign.kind in serving.KINDS)
_OF_A_CLIENT = _Signs(client.SIGNS)
_HINTS = _Signs(sign for sign in SIGNS if sign.weight is Weight.HINT)


@dataclass(frozen=True, slots=True)
class _Found:
    weight: Weight
    position: int
    diagnosis: Diagnosis


@dataclass(slots=True)
class _Chain:
    """A chain of exceptions raised from each other, as one process prints it."""

    frames: deque[str] = field(default_factory=lambda: deque(maxlen=_DEEPEST))
    first_error: tuple[int, str] | None = None
    ended: bool = False
    goes_on: bool = False

    def next(self, text: str, *, is_error: bool) -> "_Chain":
        """The chain that a line belongs to: this one, or a new one if another exception begins."""
        if _RAISED_FROM.match(text):
            self.goes_on = True
        begins = is_error or text.startswith(_TRACEBACK)
        chain = _Chain() if begins and self.ended and not self.goes_on else self
        chain.frames.append(text)
        return chain

    def error(self, position: int, text: str) -> None:
        """Note that an exception of the chain ends here."""
        self.ended, self.goes_on = True, False
        self.first_error = self.first_error or (position, text)


def diagnose(log: Sequence[str], code: int, *, served: bool = False) -> Diagnosis:
    """Say why a program ended unasked.

    Args:
        log: Its output, oldest line first.
        code: Its exit code; negative for the signal that killed it.
        served: Whether it had been ready.
    """
    lines = [parse(line) for line in log]
    signs = _AT_WORK if served else _HEAVY
    said = f"It ended with exit code {code}"
    if served:
        lines = serving.of_the_end(lines)
    if found := _worst(lines, f"{said}: ", signs, killed=-code == signal.SIGKILL):
        return found
    if code < 0:
        return SIGNALS.get(-code, Diagnosis(f"It was ended by {_name(-code)}."))
    last = next((text for line in reversed(lines) if line.level not in _QUIET and (text := _plain(line.text))), "")
    return Diagnosis(f"{said}.", evidence=last)


def read_log(log: Iterable[str]) -> list[Diagnosis]:
    """Report everything found in a log file: what ended each program's last run, if it ended, and hints.

    Lines may begin with `NAME | `, as kvgate and `docker compose` write them, or with a time, or be kvgate's JSON.
    """
    by_engine: dict[str, list[LogLine]] = defaultdict(list)
    for raw in log:
        engine, line = _collected(raw)
        if _START.search(line.text):
            by_engine[engine].clear()
        by_engine[engine].append(line)
    told: list[Diagnosis] = []
    for engine, lines in by_engine.items():
        served = serving.was_ready(lines)
        of_it, signs = (serving.of_the_end(lines), _AT_WORK) if served else (lines, _HEAVY)
        failure = _of_a_client(lines) or _worst(of_it, "The first error of the log: ", signs, killed=False)
        hints = [hint for hint in _hints(lines) if failure is None or hint.sign != failure.sign]
        told += [_of(engine, found) for found in ([failure] if failure else []) + hints]
    return told


def _name(number: int) -> str:
    """The name of a signal. Real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_of_a_server(line: LogLine) -> bool:
    return (
        line.level is not None or "pid=" in line.process or bool(_START.search(line.text) or _KVGATE.match(line.text))
    )


def _of_a_client(lines: Sequence[LogLine]) -> Diagnosis | None:
    """Why a client did not get through, with the server's address if its log has it."""
    if any(map(_is_of_a_server, lines)):
        return None
    found = [one.diagnosis for one in _failures(lines, "", _OF_A_CLIENT)]
    told = next((one for sign in client.SIGNS for one in found if one.sign == sign.name), None)
    return replace(told, facts=client.address(line.text for line in lines)) if told else None


def _worst(lines: Sequence[LogLine], unknown: str, signs: _Signs, *, killed: bool) -> Diagnosis | None:
    found = list(_failures(lines, unknown, signs))
    causes = [one for one in found if one.weight is Weight.CAUSE]
    if causes:
        return causes[0].diagnosis
    if killed:
        return None
    effects = [one for one in found if one.weight is Weight.EFFECT]
    if effects:
        return min(effects, key=lambda one: one.position).diagnosis
    return next((one.diagnosis for one in found), None)


def _failures(lines: Sequence[LogLine], unknown: str, signs: _Signs) -> Iterable[_Found]:
    """All signs of a failure, in the order of the log. An unknown error counts as an effect of an unknown cause."""
    chains: dict[str, _Chain] = defaultdict(_Chain)
    for position, line in enumerate(lines):
        if line.level in _QUIET or _KVGATE.match(line.text):
            continue
        chain = chains[line.process]
        if _SOURCE.match(line.text):  # source code in a traceback: its strings are no messages
            chain.frames.append(line.text.strip())
            continue
        text = _plain(line.text)
        if text == "AssertionError":
            text = _asserted(chain.frames)
        is_error = bool(_ERROR.match(text))
        chain = chains[line.process] = chain.next(text, is_error=is_error)
        if (found := signs.first(text, chain.frames)) is not None:
            sign, diagnosis = found
            at = position
            if sign.weight is Weight.EFFECT and chain.first_error is not None:
                at, evidence = chain.first_error
                diagnosis = replace(diagnosis, evidence=evidence)
                at -= 1  # before that error itself
            yield _Found(sign.weight, at, diagnosis)
        elif is_error and not _GENERIC.search(text) and _HINTS.first(text, chain.frames) is None:
            yield _Found(Weight.EFFECT, position, Diagnosis(f"{unknown}{text}", evidence=text))
        if is_error:
            chain.error(position, text)


def _asserted(frames: Reversible[str]) -> str:
    """The text of an AssertionError, with its assertion if the stack shows it."""
    return next(
        (f"AssertionError: {frame}" for frame in reversed(frames) if frame.startswith("assert ")), "AssertionError"
    )


def _hints(lines: Sequence[LogLine]) -> Iterable[Diagnosis]:
    """Each hint once, with its first line."""
    seen: set[str] = set()
    for line in lines:
        if (found := _HINTS.first(_plain(line.text), ())) is not None and found[0].name not in seen:
            seen.add(found[0].name)
            yield found[1]


_COLLECTED = re.compile(r"^(?P<engine>[\w./@ -]{1,80}?)\s*\| ")
_TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) F )?")


def _collected(raw: str) -> tuple[str, LogLine]:
    """The name of the line's program, and the line without a log collector's prefix."""
    text = _TIMESTAMP.sub("", raw.rstrip("\n"))
    if (start := text.find('{"')) >= 0 and '"program":' in text:
        with contextlib.suppress(ValueError, KeyError, RecursionError):
            told = json.loads(text[start:])
            return str(told["program"]), parse(str(told["line"] if "line" in told else told["event"]))
    prefix = _COLLECTED.match(text)
    return (prefix["engine"], parse(_TIMESTAMP.sub("", text[prefix.end() :]))) if prefix else ("", parse(text))


def _of(engine: str, found: Diagnosis) -> Diagnosis:
    return replace(found, cause=f"{engine}: {found.cause}") if engine else found


def _plain(text: str) -> str:
    """The text, cut to a readable length, without the configuration values that pydantic appends."""
    return text.partition(" [type=")[0].strip()[:_LONGEST]
