"""The logs on stderr: JSON lines, or lines for people. The standard library's logs go through here too.

Prompts and answers are never logged. The access line has no field for them. In all other lines, fields named like text
or secrets are blanked, and so is whatever follows "Bearer".

A line that cannot be written is lost: a full disk, or a log reader that has ended or stands still, stops nothing else.
"""

import asyncio
import atexit
import functools
import json
import logging
import os
import re
import select
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import msgspec
import structlog

from gateway.config.settings import LogSettings
from gateway.ops import people
from gateway.ops.log_output import LogOutput
from gateway.wire.shown import shown

_NEVER = frozenset(
    {
        "admin_key", "api_key", "authorization", "body", "completion", "content", "cookie", "headers", "input", "key",
        "messages", "password", "prompt", "secret", "text", "token", "tools",
    }
)  # fmt: skip
_BLANK = "[redacted]"
_LAST = 0.5
"""Seconds that the reader of the log has for the last lines of a process."""
_CREDENTIALS = re.compile(r"(?i)(\bbearer\s+)[^\s\"',;]+|(://)[^/\s@]+(?=@)")

_encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


def for_people(settings: LogSettings, stream: TextIO | None = None) -> bool:
    """Whether lines to `stream` (by default stderr) are for people; else they are JSON."""
    out = sys.stderr if stream is None else stream
    return settings.format == "console" or (settings.format == "auto" and out.isatty())


def timestamp() -> str:
    """The present time as JSON lines show it: UTC, to the millisecond."""
    second, millisecond = divmod(time.time_ns() // 10**6, 1000)
    return f"{_to_the_second(second)}.{millisecond:03}Z"


@functools.lru_cache(1)
def _to_the_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class _Lines:
    """Writes lines."""

    def __init__(self, out: LogOutput) -> None:
        self._out = out

    def msg(self, message: str) -> None:
        """Write one line."""
        self._out.write(f"{message}\n")

    debug = info = warning = error = critical = msg


@functools.lru_cache(1)
def _output(out: TextIO, *, people_read: bool) -> LogOutput:
    """What writes to a stream, one for all kinds of lines. At its end, this process gives stderr's reader a moment."""

    def lost(lines: int) -> str:
        line: dict[str, Any] = {"event": "lines of this log were lost: its reader stood still", "lines": lines}
        line |= {"level": "warning", "timestamp": timestamp()}
        return people.happened(line, colors=_colors(out)) if people_read else _render_json(None, "", line)

    output = LogOutput(out, lost)
    if out is sys.stderr:
        atexit.register(output.drain, _LAST)
    return output


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's lines to `stream`, stderr by default.

    Run uvicorn with `log_config=None`, so that its loggers stay as they are set here.
    """
    out = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    output = _output(out, people_read=for_people(settings, out))
    lines = _Lines(output)
    renderer = _renderer(out) if for_people(settings, out) else _render_json
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamp,
        # Plain tracebacks: local variables would show requests.
        structlog.processors.format_exc_info,
        redact,
        _tell_others,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # People need no libraries' chatter.
    least = max(level, logging.WARNING) if for_people(settings, out) and level > logging.DEBUG else level
    logging.basicConfig(handlers=[handler], level=least, force=True)
    logging.captureWarnings(capture=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # We write one line per request ourselves. These would add one per probe, and uvicorn's internals.
    for name in ("uvicorn.error", "uvicorn.access", "httpx", "httpcore", "aiohttp.access"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


Sink = Callable[[Mapping[str, Any]], None]
_others: list[Sink] = []


def also_to(sink: Sink) -> Callable[[], None]:
    """Have each line of the log, but not the access log, passed to a sink too; returns what ends that."""
    _others.append(sink)
    return functools.partial(_others.remove, sink)


def _tell_others(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for sink in _others:
        sink(line)
    return line


def redact(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank what must not be logged; a structlog processor."""
    for name, value in line.items():
        if name in _NEVER:
            line[name] = _BLANK
        elif isinstance(value, str):
            line[name] = _CREDENTIALS.sub(rf"\1\2{_BLANK}", value)
    return line


class AccessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are milliseconds; unknown values are null."""

    timestamp: str
    level: str = "info"
    event: str = "request"
    request_id: str
    path: str
    model: str | None
    flow: str
    status: int | None
    outcome: str
    endpoint: str | None
    fallback: str | None
    stream: bool
    prompt_tokens: int | None
    counted: str | None
    completion_tokens: int | None
    queue_ms: float | None
    ttft_ms: float | None
    overhead_ms: float | None
    duration_ms: float


LATEST = 0.1
"""Seconds after which an access line is written, at the latest."""


class AccessLog:
    """Writes one line for each request.

    Args:
        settings: the format.
        stream: by default stderr.
        together: in an event loop, lines of JSON are written together: once they fill a page, or the first is `LATEST`
            old. Then a process that is killed loses the lines of that time, and whoever stops it calls `flush`. A page
            is what a pipe takes in one piece, so that the lines of several processes are never mixed.
    """

    def __init__(self, settings: LogSettings, stream: TextIO | None = None, *, together: bool = False) -> None:
        self._out = sys.stderr if stream is None else stream
        self._together = together
        self._for_people = for_people(settings, self._out)
        self._lines = _Lines(_output(self._out, people_read=self._for_people))
        self._headed = False
        self._page: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def __call__(
        self,
        *,
        request_id: str,
        path: str,
        model: str | None,
        flow: str,
        status: int | None,
        outcome: str,
        endpoint: str | None,
        fallback: str | None,
        stream: bool,
        prompt_tokens: int | None,
        counted: str | None,
        completion_tokens: int | None,
        queue_ms: float | None,
        ttft_ms: float | None,
        overhead_ms: float | None,
        duration_ms: float,
    ) -> None:
        """Log a request that has ended.

        Args:
            request_id: as told to the client.
            path: without its query.
            model: the name of the pool it asks for, whatever alias the client used; None if there is none.
            flow: the caller: a key's name or an address, never a key.
            status: of the answer; 499 if the client left before it.
            outcome: a value of `gateway.admission.outcomes.Outcome`.
            endpoint: the last one it was on; None if it reached none.
            fallback: what answered in the place of `model`: another model, or the host of a server elsewhere.
            stream: whether the client asked for a stream.
            prompt_tokens: from the engine's usage, else as counted.
            counted: the source of the prompt's count: `local`, `engine` or `estimate`; None if not counted.
            completion_tokens: from the engine's usage.
            queue_ms: time in the queue.
            ttft_ms: from its arrival to its stream's first event handed to the client; None if nothing streamed.
            overhead_ms: time that kvgate added, without the queue.
            duration_ms: from its arrival to its end.
        """
        line = AccessLine(
            timestamp=timestamp(),
            request_id=shown(request_id),
            path=shown(path),
            model=None if model is None else shown(model),
            flow=shown(flow),
            status=status,
            outcome=outcome,
            endpoint=endpoint,
            fallback=fallback,
            stream=stream,
            prompt_tokens=prompt_tokens,
            counted=counted,
            completion_tokens=completion_tokens,
            queue_ms=queue_ms,
            ttft_ms=ttft_ms,
            overhead_ms=overhead_ms,
            duration_ms=duration_ms,
        )
        if self._for_people:
            self._lines.msg(self._shown(line))
        else:
            self._keep(_encoder.encode(line))

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._page:
            self._lines.msg(b"\n".join(self._page).decode())
            self._page.clear()
            self._size = 0

    def _keep(self, line: bytes) -> None:
        self._size += len(line) + 1
        if self._size > select.PIPE_BUF and self._page:
            self.flush()
            self._size = len(line) + 1
        self._page.append(line)
        if not self._together:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATEST, self.flush)

    def _shown(self, line: AccessLine) -> str:
        row = people.request(msgspec.structs.asdict(line), width=_width(self._out), colors=_colors(self._out))
        if self._headed:
            return row
        self._headed = True
        return f"{people.HEADER[: _width(self._out)]}\n{row}"


def _stamp(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line["timestamp"] = timestamp()
    return line


def _renderer(out: TextIO) -> structlog.typing.Processor:
    def render(_logger: object, _method: str, line: MutableMapping[str, Any]) -> str:
        return people.happened(line, colors=_colors(out))

    return render


def _width(out: TextIO) -> int | None:
    try:
        return os.get_terminal_size(out.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _colors(out: TextIO) -> bool:
    return out.isatty() and "NO_COLOR" not in os.environ


def _render_json(_logger: object, _method: str, line: MutableMapping[str, Any]) -> str:
    try:
        return _encoder.encode(line).decode()
    except (TypeError, ValueError):  # half a surrogate pair, or a key that is not a string: log it anyway
        return json.dumps(line, default=repr, skipkeys=True)
