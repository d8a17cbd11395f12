"""The standard variables of OpenTelemetry (`OTEL_*`), which are all the settings that it has here.

The SDK reads most of them by itself, and goes on with its defaults where one is wrong. Here a wrong one is an error.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config.errors import ConfigurationError
from gateway.ops.otlp.trace import Sampler

EXTRA = "kvgate[otel]"


class Signal(StrEnum):
    """What is exported."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


@dataclass(frozen=True, slots=True)
class Batching:
    """How records are exported together.

    Attributes:
        delay: seconds after which the first of them leaves.
        queue: most that wait; more are dropped.
        batch: most in one export.
    """

    delay: float
    queue: int
    batch: int


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables say.

    Attributes:
        signals: those that are exported.
        sampler: of traces.
        metric_interval: seconds between two exports of metrics.
    """

    signals: frozenset[Signal]
    sampler: Sampler
    spans: Batching
    logs: Batching
    metric_interval: float


def read(environ: Mapping[str, str]) -> Environment | None:
    """Read the variables. None if nothing is exported: no endpoint is given, or `OTEL_SDK_DISABLED` is true.

    Raises:
        ConfigurationError: lists every wrong one, and says if the extra is not installed.
    """
    given = {name: value.strip() for name, value in environ.items() if name.startswith("OTEL_") and value.strip()}
    signals = frozenset(signal for signal in Signal if _exported(given, signal))
    if not signals or given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if faults := list(_faults(given)):
        raise ConfigurationError("\n".join(faults))
    if not _installed():
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT: kvgate exports nothing without its extra `otel`. Install it "
            f"(`pip install '{EXTRA}'`), or set OTEL_SDK_DISABLED=true."
        )
    share = float(given.get(_SHARE, 1.0))
    return Environment(
        signals,
        Sampler.named(given.get(_SAMPLER, "parentbased_always_on"), share) or Sampler(),
        _batching(given, "OTEL_BSP", 5000),
        _batching(given, "OTEL_BLRP", 1000),
        float(given.get("OTEL_METRIC_EXPORT_INTERVAL", 60_000)) / 1000,
    )


def _installed() -> bool:
    """Whether the extra is, without loading it."""
    try:
        return all(map(importlib.util.find_spec, ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        return False


_SAMPLER, _SHARE = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"


def _exported(given: Mapping[str, str], signal: Signal) -> bool:
    """Whether a signal is exported: it has an endpoint, or is asked for by name and goes to the default one."""
    name = signal.name
    asked = given.get(f"OTEL_{name}_EXPORTER")
    if asked is not None:
        return asked != "none"
    return "OTEL_EXPORTER_OTLP_ENDPOINT" in given or f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT" in given


def _batching(given: Mapping[str, str], prefix: str, delay: int) -> Batching:
    def number(name: str, default: int) -> int:
        return int(given.get(f"{prefix}_{name}", default))

    queue = number("MAX_QUEUE_SIZE", 2048)
    return Batching(number("SCHEDULE_DELAY", delay) / 1000, queue, min(queue, number("MAX_EXPORT_BATCH_SIZE", 512)))


def _faults(given: Mapping[str, str]) -> Iterator[str]:
    for pattern, right, rule in _RULES:
        for name, value in given.items():
            if re.fullmatch(pattern, name) and not right(value):
                shown = "" if name.endswith("HEADERS") else f" = {value!r}"  # they have keys
                yield f"{name}{shown}: {rule}"


def _url(value: str) -> bool:
    try:
        url = urlsplit(value)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _pairs(value: str) -> bool:
    return all(pair.partition("=")[0].strip() and "=" in pair for pair in value.split(",") if pair.strip())


def _number(least: float, most: float = float("inf")) -> Callable[[str], bool]:
    def right(value: str) -> bool:
        try:
            return least <= float(value) <= most
        except ValueError:
            return False

    return right


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in values


_OTLP = r"OTEL_EXPORTER_OTLP(_(TRACES|METRICS|LOGS))?"
_RULES: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    (rf"{_OTLP}_ENDPOINT", _url, "it must be a URL, as http://localhost:4318"),
    (
        rf"{_OTLP}_PROTOCOL",
        _one_of("http/protobuf"),
        "kvgate exports by http/protobuf only; collectors take it at port 4318",
    ),
    (rf"{_OTLP}_COMPRESSION", _one_of("none", "gzip", "deflate"), "it must be none, gzip or deflate"),
    (rf"{_OTLP}_TIMEOUT", _number(0.001), "it must be a number of seconds"),
    (rf"{_OTLP}_HEADERS", _pairs, "it must be a list of name=value, with commas between"),
    (
        rf"{_OTLP}_(CERTIFICATE|CLIENT_KEY|CLIENT_CERTIFICATE)",
        lambda file: Path(file).is_file(),
        "there is no such file",
    ),
    (r"OTEL_(TRACES|METRICS|LOGS)_EXPORTER", _one_of("otlp", "none"), "it must be otlp or none"),
    (
        _SAMPLER,
        lambda name: Sampler.named(name) is not None,
        "it must be always_on, always_off, traceidratio, or one of these after parentbased_",
    ),
    (_SHARE, _number(0, 1), "it must be a share, 0 to 1"),
    (
        "OTEL_PROPAGATORS",
        lambda names: "tracecontext" in [name.strip() for name in names.split(",")],
        "it must have tracecontext: engines know no other",
    ),
    (
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
        _one_of("cumulative"),
        "kvgate's counters are cumulative; a collector can make deltas of them",
    ),
    (r"OTEL_(BSP|BLRP)_(SCHEDULE_DELAY|EXPORT_TIMEOUT)", str.isdecimal, "it must be a number of milliseconds"),
    (r"OTEL_(BSP|BLRP)_MAX_(QUEUE|EXPORT_BATCH)_SIZE", lambda v: v.isdecimal() and int(v) > 0, "it must be a number"),
    ("OTEL_METRIC_EXPORT_INTERVAL", _number(1), "it must be a number of milliseconds"),
    ("OTEL_RESOURCE_ATTRIBUTES", _pairs, "it must be a list of name=value, with commas between"),
)
"""Names of variables, what is right for each, and what to say if it is not."""
