"""PURE. What is common to every line vLLM prints: who printed it, how severe it is, and the text itself."""

import re
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"^\([A-Za-z][\w-]*(?: [^)]*)?\) ?")
_HEADER = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without `(EngineCore pid=7)` and `ERROR 11-20 18:04:19 [core.py:133]` in front of it.

    `level` is None where the line came from something else than vLLM's logger: a traceback, a progress bar.
    """

    level: str | None
    text: str


def parse(line: str) -> LogLine:
    """Take a raw line apart."""
    text = _PROCESS.sub("", _COLOUR.sub("", line).rstrip())
    header = _HEADER.match(text)
    return LogLine(header["level"], text[header.end() :]) if header else LogLine(None, text)
