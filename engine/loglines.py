"""PURE. The parts common to all of vLLM's log lines: process, level, source, time and text."""

import re
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"^(?:\((?P<process>[A-Za-z][\w-]*(?: [^)]*)?)\)|\[(?P<rank>rank\d+)\]:) ?")
# Until 0.8: `ERROR 03-19 10:48:40 worker.py:467] text`, since then `ERROR 03-19 10:48:40 [worker.py:467] text`.
_HEADER = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[?(?P<source>[\w./-]{0,80})[^\]]{0,80}\] ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, with prefixes like `(EngineCore pid=7)` and `ERROR 11-20 18:04:19 [core.py:133]` taken off.

    `level` is None for a line that did not come from vLLM's logger, such as a traceback or a progress bar. In this
    example `process` is `EngineCore pid=7`, `source` is `core.py` and `at` is `11-20 18:04:19`; each is empty if the
    line does not say.
    """

    level: str | None
    text: str
    process: str = ""
    source: str = ""
    at: str = ""


def parse(line: str) -> LogLine:
    """Take a raw line apart."""
    text = _COLOUR.sub("", line).rstrip()
    process = ""
    if prefix := _PROCESS.match(text):
        process = prefix["process"] or prefix["rank"]
        text = text[prefix.end() :]
    header = _HEADER.match(text)
    if header is None:
        return LogLine(None, text, process)
    return LogLine(header["level"], text[header.end() :], process, header["source"], header["at"])
