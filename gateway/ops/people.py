"""Log lines for people at a terminal: time and event; for a request, its main facts in columns.

The same lines are JSON elsewhere, with all their fields: see `logs.py`.
"""

from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime
from typing import Any

import structlog

HEADER = "time      status  request      tokens        first    all      model, client, endpoint"
"""The header of the columns of `request`, printed once."""

_DIM, _YELLOW, _RED, _PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_LEVELS = {"warning": _YELLOW, "error": _RED, "critical": _RED}
_FIRST_SERVER_ERROR, _FIRST_CLIENT_ERROR = 500, 400
_SHORT = {"chat/completions": "chat"}
_WORTH_TELLING = 100.0
"""Milliseconds in the queue from which the wait is shown."""


def _nothing(_: Mapping[str, Any]) -> str:
    """Nothing: the shell's prompt shows it."""
    raise structlog.DropEvent


def _stopping(line: Mapping[str, Any]) -> str:
    if not line["active"]:
        return "stopping"
    requests = "1 request" if line["active"] == 1 else f"{line['active']} requests"
    return f"stopping: waits for {requests}, at most {line['at_most']:g} s; Ctrl-C again ends it now"


def _listening(line: Mapping[str, Any]) -> str:
    where = line["socket"] if "socket" in line else f"port {line['port']}"
    return f"kvgate {line['version']} listens on {where}"


def _unwell(line: Mapping[str, Any]) -> str:
    said = f"endpoint {line['endpoint']} is still {line['state']}: {line['reason']}"
    return f"{said}\n{line['help']}" if "help" in line else said


_SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "listening": _listening,
    "stopping": _stopping,
    "stopped": _nothing,
    "endpoint changed": lambda line: f"endpoint {line['endpoint']} is {line['state']}: {line['reason']}",
    "endpoint is still not healthy": _unwell,
    "prompts are counted as the endpoint counts them": lambda line: (
        f"endpoint {line['endpoint']} counts prompts as kvgate does"
    ),
}
"""Texts shown instead of a line's event and fields."""


def happened(line: MutableMapping[str, Any], *, colors: bool) -> str:
    """A structlog line in the form for people; a traceback follows below it."""
    level, exception = str(line.pop("level", "info")), line.pop("exception", None)
    line.pop("timestamp", None)
    line.pop("logger", None)
    event = str(line.get("event", ""))
    if event in _SENTENCES:
        text = _SENTENCES[event](line)
    else:
        fields = ", ".join(f"{name} {_shown(value)}" for name, value in line.items() if name != "event")
        text = f"{event} ({fields})" if fields else event
    first, *rest = map(harmless, (f"{text}\n{exception}" if exception else text).splitlines() or [""])
    if level in _LEVELS:
        first = f"{_colored(f'{level}:', _LEVELS[level], colors)} {first}"
    return "\n".join([f"{_clock(colors)}  {first}", *(f"{'':8}  {each}" for each in rest)])


def harmless(text: str) -> str:
    """The text without control characters that a terminal would obey."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


def request(line: Mapping[str, Any], *, width: int | None, colors: bool) -> str:
    """A request's end, cut to `width` characters.

    Args:
        line: the fields of `gateway.ops.logs.AccessLine`.
        width: of the terminal; None does not cut the line.
        colors: whether to color failures.
    """
    path = line["path"].removeprefix("/v1/")
    status = str(line["status"] or "-")
    counts = (line["prompt_tokens"], line["completion_tokens"])
    tokens = "+".join("?" if count is None else str(count) for count in counts) if any(counts) else ""
    about = [] if line["outcome"] == "completed" else [line["outcome"]]
    if (line["queue_ms"] or 0) >= _WORTH_TELLING:
        about.append(f"queued {_duration(line['queue_ms'])}")
    about += [line[name] for name in ("model", "fallback", "flow", "endpoint") if line[name] is not None]
    first = _duration(line["ttft_ms"])
    rest = f"{_SHORT.get(path, path):<11.11}  {tokens:<12}  {first:<7}  {_duration(line['duration_ms']):<7}  "
    text = f"  {status:<6}  {rest}{', '.join(about)}"
    if width is not None:
        text = text[: width - 8]
    number = line["status"] or _FIRST_SERVER_ERROR
    color = _RED if number >= _FIRST_SERVER_ERROR else _YELLOW if number >= _FIRST_CLIENT_ERROR else ""
    return _clock(colors) + _colored(text, color, colors)


def _clock(colors: bool) -> str:  # noqa: FBT001
    return _colored(f"{datetime.now():%H:%M:%S}", _DIM, colors)  # noqa: DTZ005  # a person's own clock


def _colored(text: str, color: str, colors: bool) -> str:  # noqa: FBT001
    return f"{color}{text}{_PLAIN}" if colors and color else text


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:  # noqa: PLR2004
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s"
