"""PURE. The parser of vLLM's `/metrics`, for the few metrics kvgate watches.

A real exposition is 50 KB or more, mostly histograms. Only a dozen lines matter here, so they are found by name and
the rest is not parsed (`engine/plan/samples.py` parses all). Names are those of vLLM 0.8.5 to 0.33. A sample that is
absent or impossible (NaN, negative, too large) is None, never zero.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_KV_USAGE = "kv_cache_usage_perc"
_KV_USAGE_BEFORE_0_9 = "gpu_cache_usage_perc"
_RUNNING = "num_requests_running"
_WAITING = "num_requests_waiting"
_WAITING_BY_REASON = "num_requests_waiting_by_reason"
_GENERATION_TOKENS = "generation_tokens_total"
_PROMPT_TOKENS = "prompt_tokens_total"
_PREEMPTIONS = "num_preemptions_total"
_PREFIX_QUERIES = "prefix_cache_queries_total"
_PREFIX_HITS = "prefix_cache_hits_total"
_COMPLETED = "request_generation_tokens_count"
_COMPLETED_OUTPUT = "request_generation_tokens_sum"
_COMPLETED_PROMPT = "request_prompt_tokens_sum"
_SLEEP_STATE = "engine_sleep_state"
_CACHE_CONFIG = "cache_config_info"

_NAMES = (
    _KV_USAGE,
    _KV_USAGE_BEFORE_0_9,
    _RUNNING,
    _WAITING,
    _WAITING_BY_REASON,
    _GENERATION_TOKENS,
    _PROMPT_TOKENS,
    _PREEMPTIONS,
    _PREFIX_QUERIES,
    _PREFIX_HITS,
    _COMPLETED,
    _COMPLETED_OUTPUT,
    _COMPLETED_PROMPT,
    _SLEEP_STATE,
    _CACHE_CONFIG,
)

EXPECTED = tuple(
    f"vllm:{name}"
    for name in (_KV_USAGE, _RUNNING, _WAITING, _GENERATION_TOKENS, _PROMPT_TOKENS, _PREEMPTIONS, _CACHE_CONFIG)
)
"""The metrics every version since 0.8.5 exports; the first also under an older name."""

MOST_READ = 448 * 2**10
"""Most bytes read of lines with these names: enough for some 200 data-parallel ranks."""
_LONGEST_LINE = 16 * 2**10
_MOST = 2.0**53
"""Counts above this are none: their differences are no longer exact."""
_LINE_COST = 128
"""Least bytes that a line counts as: each line has a fixed cost."""


def lines_of(prefix: str, names: Iterable[str]) -> re.Pattern[bytes]:
    """An expression that finds the lines of these metrics, for `samples`; no name may be the beginning of another.

    As of every expression here, its time grows with the text and no faster: an endpoint may answer with anything.
    """
    return re.compile(rb"\n%b(%b)(?=[ \t{])([^\n]{0,%d})" % (prefix.encode(), "|".join(names).encode(), _LONGEST_LINE))


_LINE = lines_of("vllm:", _NAMES)
_LORA_LINE = lines_of("vllm:", ["lora_requests_info"])
_QUOTED = rb'"[^"\\]*+(?:\\.[^"\\]*+)*"'
_SAMPLE = re.compile(rb"(?:\{((?:[^\"}]++|" + _QUOTED + rb")*)\})?[ \t]++([^\s]{1,64})(?!\S)")
_LABEL = re.compile(rb'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"([^"\\]*+(?:\\.[^"\\]*+)*)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One scrape. None means that the engine does not export the metric."""

    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1, of the fullest data-parallel rank."""
    running: int | None = None
    """Requests in execution, over all ranks."""
    waiting: int | None = None
    """Requests waiting for capacity, over all ranks; before vLLM 0.20 all waiting requests."""
    deferred: int | None = None
    """Requests waiting for something else, as one whose adapter has no place (`--max-loras`)."""
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    work: float | None = None
    """What rises as an engine works whose counters of tokens move only when a request ends."""
    preemptions: float | None = None
    prefix_queries: float | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: float | None = None
    """Prompt tokens found in the prefix cache."""
    completed: float | None = None
    """Sequences generated to their end. A request may have several; an aborted one has none."""
    completed_prompt: float | None = None
    """Prompt tokens of these sequences; each counts its whole prompt."""
    completed_output: float | None = None
    awake: bool | None = None
    """False if any rank sleeps (since 0.11.2)."""
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of `vllm:cache_config_info` as received, of the first rank; empty if there are none."""
    ranks: int = 1
    """Data-parallel ranks behind this server."""
    missing: tuple[str, ...] = ()
    """Full names of the metrics of `EXPECTED` that are absent, for a warning."""


def parse(text: bytes) -> EngineMetrics:
    """Read one exposition; skip what is not vLLM's, unknown or malformed."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in samples(text, _LINE):
        found.setdefault(name, []).append((labels, value))

    def total(name: str, **where: str) -> float | None:
        values = [value for labels, value in found.get(name, ()) if where.items() <= labels.items()]
        return within(sum(values), _MOST) if values else None

    usage = [value for name in (_KV_USAGE, _KV_USAGE_BEFORE_0_9) for _, value in found.get(name, ())]
    awake = [value for labels, value in found.get(_SLEEP_STATE, ()) if labels.get("sleep_state") == "awake"]
    waiting = total(_WAITING_BY_REASON, reason="capacity")
    configs = found.get(_CACHE_CONFIG, ())
    ranks = {labels["engine"] for labels, _ in found.get(_RUNNING, ()) if "engine" in labels}
    renamed = {_KV_USAGE} if usage else set()
    return EngineMetrics(
        kv_usage=within(max(usage), 1.0) if usage else None,
        running=whole(total(_RUNNING)),
        waiting=whole(total(_WAITING) if waiting is None else waiting),
        deferred=whole(total(_WAITING_BY_REASON, reason="deferred")),
        generation_tokens=total(_GENERATION_TOKENS),
        prompt_tokens=total(_PROMPT_TOKENS),
        preemptions=total(_PREEMPTIONS),
        prefix_queries=total(_PREFIX_QUERIES),
        prefix_hits=total(_PREFIX_HITS),
        completed=total(_COMPLETED),
        completed_prompt=total(_COMPLETED_PROMPT),
        completed_output=total(_COMPLETED_OUTPUT),
        awake=min(awake) > 0 if awake else None,
        cache_config=configs[0][0] if configs else {},
        ranks=max(len(ranks), 1),
        missing=tuple(name for name in EXPECTED if name.removeprefix("vllm:") not in {*found, *renamed}),
    )


def used_loras(text: bytes) -> tuple[int, frozenset[str]]:
    """How many adapters run at once (`--max-loras`), and for which there are requests; 0 where the engine tells none.

    It leaves a line for each set of adapters that there was; the value is when.
    """
    lines = ((value, labels) for _, labels, value in samples(text, _LORA_LINE))
    _, newest = max(lines, key=lambda line: line[0], default=(0.0, {}))
    used = (newest.get(f"{what}_lora_adapters", "").split(",") for what in ("running", "waiting"))
    most = newest.get("max_lora", "")
    return int(most) if most.isdecimal() else 0, frozenset(name for names in used for name in names if name)


def samples(text: bytes, lines: re.Pattern[bytes]) -> Iterator[tuple[str, dict[str, str], float]]:
    """The names, labels and finite values of the samples on these lines; at most `MOST_READ` bytes of them."""
    # With a newline in front the expression begins with a literal, so the search can jump to each match.
    read = 0
    for line in lines.finditer(b"\n" + text):
        name, rest = line.groups()
        read += max(_LINE_COST, len(rest))
        if read > MOST_READ:
            return
        sample = _SAMPLE.match(rest)
        if sample is None:
            continue
        labels, number = sample.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value):
            yield name.decode(), dict(_labels(labels or b"")), value


def _labels(text: bytes) -> Iterator[tuple[str, str]]:
    for name, value in _LABEL.findall(text):
        plain = value.decode(errors="replace")
        yield name.decode(), _ESCAPE.sub(_unescaped, plain) if "\\" in plain else plain


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def within(value: float, most: float) -> float | None:
    """A value from 0 to this; None for any other."""
    return value if 0 <= value <= most else None


def whole(value: float | None) -> int | None:
    """The nearest whole number."""
    return None if value is None else round(value)
