"""PURE. The filter for errors of single requests in the log of an engine that served: they did not end it.

A bad tool call, a body that is no JSON, a client that left: each logs an error, often with a traceback, and the engine
goes on. So once an engine was ready, only lines about its end count: those shortly before it, from the processes that
hold the model, or about these processes.

Sources: vLLM 0.32 (`entrypoints/`, `tool_parsers/`, `v1/engine/core_client.py`), uvicorn.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from engine.diagnosis.sign import Kind
from engine.loglines import LogLine

BEFORE_THE_END = 60.0
"""Seconds before its end in which an engine says why. A hung call times out later, and is reported then."""
KINDS = frozenset({Kind.MEMORY, Kind.PARALLEL, Kind.NETWORK, Kind.DEATH})
"""The kinds of failure that can end an engine that served. Its arguments, model and tokenizer were read before."""

_READY = re.compile(r"^INFO:\s+Application startup complete\.|^[\d.]+ I srv .*\blistening on http")
_END = re.compile(r"EngineCore encountered a fatal error|died unexpectedly|died with exit code|EngineDeadError")
_API_SERVER = re.compile(r"^ApiServer|^APIServer")
_OF_THE_ENGINE = frozenset({"async_llm.py", "coordinator.py", "core_client.py", "launcher.py", "utils.py"})
"""Source files whose log lines come from an API server and are about the engine's other processes."""


@dataclass(frozen=True, slots=True)
class ServingError:
    """The mark of a failed request: the file that logs it, or how a traceback without a header begins."""

    name: str
    source: str = ""
    text: str = ""


SERVING_ERRORS = (
    ServingError("a tool call or reasoning that cannot be read", source=r"\w+_parser\.py|\w*parsers?\.py"),
    ServingError("an answer that failed", source=r"(?:\w+_)?serving(?:_\w+)?\.py|connection\.py|context\.py"),
    ServingError("a request that is refused", source=r"api_router\.py|api_server\.py|protocol\.py|preprocess\.py"),
    ServingError("an error that became a status", source=r"exception\.py|http\.py|validation\.py|vllm_error\.py"),
    ServingError("an exception in a route", text=r"ERROR:\s+Exception in ASGI application"),
    ServingError("a task nobody waits for any more", text=r"(?:ERROR:\s+)?Task exception was never retrieved"),
)
_SOURCES = re.compile("|".join(error.source for error in SERVING_ERRORS if error.source))
_TEXTS = re.compile("|".join(error.text for error in SERVING_ERRORS if error.text))


def was_ready(lines: Sequence[LogLine]) -> bool:
    """Whether the engine served at some time."""
    return any(_READY.match(line.text) for line in lines)


def of_the_end(lines: Sequence[LogLine]) -> list[LogLine]:
    """The lines that may say why an engine that served has ended."""
    end = next((number for number, line in enumerate(lines) if _END.search(line.text)), None)
    times = _times(lines)
    at = times[-1 if end is None else end] if times else None
    late = (
        line
        for line, time in zip(lines, times, strict=True)
        if at is None or time is None or (at - time).total_seconds() <= BEFORE_THE_END
    )
    return [line for line, of_request in _told(late) if not of_request]


def _times(lines: Sequence[LogLine]) -> list[datetime | None]:
    """The time of each line. A line without a time has the time of the one before."""
    times: list[datetime | None] = []
    last: datetime | None = None
    for line in lines:
        if line.at:
            with contextlib.suppress(ValueError):  # a request's text may look like a time
                last = datetime.strptime(f"2000-{line.at}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - only compared
        times.append(last)
    return times


def _told(lines: Iterator[LogLine]) -> Iterator[tuple[LogLine, bool]]:
    """Each line, with whether it is about a request."""
    of_request: dict[str, bool] = {}
    for line in lines:
        if line.level is not None:
            of_request[line.process] = _is_of_request(line)
        elif _TEXTS.match(line.text):
            of_request[line.process] = True
        elif line.text.startswith("INFO:"):
            of_request[line.process] = False
        yield line, of_request.get(line.process, False)


def _is_of_request(line: LogLine) -> bool:
    if line.source in _OF_THE_ENGINE:
        return False
    if _API_SERVER.match(line.process):
        return True
    return not line.process and _SOURCES.fullmatch(line.source) is not None
