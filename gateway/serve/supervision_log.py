"""The log of kvgate's programs: lines for people or JSON, the engines' own logs, and last words."""

import logging
import re
from pathlib import Path

import structlog

from engine.cache import cache_folder
from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, Crashed, GaveUp, LinePrinted, Overdue, SupervisorEvent
from engine.loglines import parse
from gateway.ops.logs import timestamp
from gateway.runtime.private_file import open_private

_ENGINE_LOG_BYTES = 16 * 2**20
"""Most bytes of a log file. The one before is kept as NAME.1."""
_WARNINGS = (Crashed, GaveUp, Overdue)
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_log = structlog.get_logger("kvgate.supervisor")


def engine_logs(where: int | str) -> Path:
    """The folder for the logs of the engines of the kvgate that serves this port or unix socket."""
    return cache_folder() / "logs" / str(where).replace("/", "%2F")


class SupervisionLog:
    """Reports events as they happen. At the end it names the programs that were given up, with the way out.

    Args:
        folder: for a log file of each engine, whose lines then stay out of those for people. With None, an engine's
            lines appear among the others.
        for_people: whether lines are for people; else they are JSON.
    """

    def __init__(self, folder: Path | None, *, for_people: bool) -> None:
        self._folder = folder
        self._for_people = for_people
        self._files: dict[str, EngineLog] = {}
        self._given_up: dict[str, Diagnosis] = {}

    def __call__(self, event: SupervisorEvent) -> None:
        """Take in one event."""
        match event:
            case LinePrinted(program, text):
                self._printed(program, text)
                return
            case GaveUp(program, diagnosis):
                self._given_up[program] = diagnosis
            case BecameReady(program):
                self._given_up.pop(program, None)
        log = _log.warning if isinstance(event, _WARNINGS) else _log.info
        log(str(event), **self._named(event.program))

    def say(self, text: str) -> None:
        """Log another line."""
        _log.info(text)

    def last_words(self) -> None:
        """Say why kvgate ended. The cause would be lost above an engine's log and the stops of other programs."""
        for program, diagnosis in self._given_up.items():
            file = self._files.get(program)
            where = f"\nIts log: {file.path}" if file is not None else ""
            _log.error(f"{program} could not run: {diagnosis}{where}", **self._named(program))

    def _printed(self, program: str, text: str) -> None:
        if self._folder is not None:
            self._file(program).write(text)
        elif self._for_people:
            _log.info(f"{program} | {text}")
        else:
            level = logging.getLevelNamesMapping().get(parse(text).level or "INFO", logging.INFO)
            _log.log(level, "the engine printed", program=program, line=text)

    def _file(self, program: str) -> "EngineLog":
        if program not in self._files:
            assert self._folder is not None  # noqa: S101  # only then is there a file
            file = self._files[program] = EngineLog(self._folder / f"{_NOT_IN_NAMES.sub('-', program)}.log")
            _log.info(f"{program}: its log is {file.path}")
        return self._files[program]

    def _named(self, program: str) -> dict[str, str]:
        """For people the name is already in the line."""
        return {} if self._for_people else {"program": program}


class EngineLog:
    """The log file of an engine's output, each line with its time.

    A full disk stops only this log: it is reported once, and lines are lost until there is room. The file is opened for
    each line, so that it may be moved or deleted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._said = False

    def write(self, line: str) -> None:
        """Append a line."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_private(self.path, "ab", buffering=0) as file:
                file.write(f"{timestamp()} {line}\n".encode(errors="replace"))
                size = file.tell()
            if size > _ENGINE_LOG_BYTES:
                self.path.replace(f"{self.path}.1")
        except OSError as error:
            if not self._said:
                _log.warning(f"{self.path} cannot be written: {error.strerror}. What the engine prints is lost.")
            self._said = True
        else:
            self._said = False
