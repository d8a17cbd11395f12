"""Logs on stderr: JSON lines, or a console for people. Everything goes through here, the standard library's too.

What a client wrote and what a model answered is never logged. The access line has no field that could hold it; in all
other lines, fields that are named like text or secrets are blanked, and so is whatever follows "Bearer".
"""

import json
import logging
import re
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec
import structlog

from gateway.config import LogSettings

_NEVER = frozenset(
    {
        "admin_key", "api_key", "authorization", "body", "completion", "content", "cookie", "headers", "input", "key",
        "messages", "password", "prompt", "secret", "text", "token", "tools",
    }
)  # fmt: skip
_BLANK = "[redacted]"
_CREDENTIALS = re.compile(r"(?i)(\bbearer\s+)[^\s\"',;]+|(://)[^/\s@]+(?=@)")
_LONGEST_NAME = 128
"""Characters of a model's name, path or id in the access line: clients write them."""

_encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's lines to `stream`, stderr by default.

    Run uvicorn with `log_config=None`, so that its loggers stay as they are set here.
    """
    out = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    renderer = _renderer(settings.format, out)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Plain tracebacks: those with local variables would show requests.
        structlog.processors.format_exc_info,
        redact,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(capture=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # One line for each request is ours; each probe would be another.
    for name in ("uvicorn.access", "httpx", "httpcore", "aiohttp.access"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def redact(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank what must not be logged; a structlog processor."""
    for name, value in line.items():
        if name in _NEVER:
            line[name] = _BLANK
        elif isinstance(value, str):
            line[name] = _CREDENTIALS.sub(rf"\1\2{_BLANK}", value)
    return line


class AccessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are milliseconds; what is not known is null."""

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
    stream: bool
    prompt_tokens: int | None
    counted: str | None
    completion_tokens: int | None
    queue_ms: float | None
    ttft_ms: float | None
    overhead_ms: float | None
    duration_ms: float


class AccessLog:
    """Writes one line for each request."""

    def __init__(self, settings: LogSettings, stream: TextIO | None = None) -> None:
        self._out = sys.stderr if stream is None else stream
        self._json = _is_json(settings.format, self._out)
        self._console = structlog.dev.ConsoleRenderer(colors=self._out.isatty(), pad_event_to=0)

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
        stream: bool,
        prompt_tokens: int | None,
        counted: str | None,
        completion_tokens: int | None,
        queue_ms: float | None,
        ttft_ms: float | None,
        overhead_ms: float | None,
        duration_ms: float,
    ) -> None:
        """A request has ended.

        Args:
            request_id: as told to the client.
            path: without its query.
            model: the name of its pool, whatever alias the client used; None where it has none.
            flow: who asked: a key's name or an address, never a key.
            status: the answer's; 499 where the client left before it.
            outcome: a value of `gateway.admission.outcomes.Outcome`.
            endpoint: the last one it was on; None where it reached none.
            stream: whether the client asked for a stream.
            prompt_tokens: from the engine's usage, else as counted.
            counted: who counted the prompt for admission, `local`, `engine` or `estimate`; None where nobody did.
            completion_tokens: from the engine's usage.
            queue_ms: time in the queue.
            ttft_ms: from its arrival to the first event of a stream handed to the client; None where nothing streamed.
            overhead_ms: what kvgate added, the queue not counted.
            duration_ms: from its arrival to its end.
        """
        line = AccessLine(
            timestamp=datetime.now(UTC).isoformat(timespec="milliseconds"),
            request_id=_name(request_id),
            path=_name(path),
            model=None if model is None else _name(model),
            flow=_name(flow),
            status=status,
            outcome=outcome,
            endpoint=endpoint,
            stream=stream,
            prompt_tokens=prompt_tokens,
            counted=counted,
            completion_tokens=completion_tokens,
            queue_ms=queue_ms,
            ttft_ms=ttft_ms,
            overhead_ms=overhead_ms,
            duration_ms=duration_ms,
        )
        if self._json:
            text = _encoder.encode(line).decode()
        else:
            shown = {name: value for name, value in msgspec.structs.asdict(line).items() if value is not None}
            text = self._console(None, "info", shown)
        self._out.write(f"{text}\n")
        self._out.flush()


def _is_json(wanted: Literal["auto", "json", "console"], out: TextIO) -> bool:
    return wanted == "json" or (wanted == "auto" and not out.isatty())


def _renderer(wanted: Literal["auto", "json", "console"], out: TextIO) -> structlog.typing.Processor:
    if _is_json(wanted, out):
        return _render_json
    return structlog.dev.ConsoleRenderer(colors=out.isatty())


def _render_json(_logger: object, _method: str, line: MutableMapping[str, Any]) -> str:
    try:
        return _encoder.encode(line).decode()
    except (TypeError, ValueError):  # half a surrogate pair, a key that is no string: log it all the same
        return json.dumps(line, default=repr, skipkeys=True)


def _name(text: str) -> str:
    """A name as a client wrote it, cut short and made harmless for a terminal."""
    if len(text) <= _LONGEST_NAME and text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:_LONGEST_NAME])
