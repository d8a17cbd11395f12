"""PURE. The diagnosis of a running engine, from the statistics in its log or its metrics.

vLLM prints a line of statistics every 10 s (`v1/metrics/loggers.py`, 0.8.5 to 0.33), and its arguments at start.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.diagnosis.sign import Diagnosis, Kind
from engine.loglines import parse
from engine.plan.samples import Samples
from engine.plan.traffic import LOW_HIT_RATE
from engine.sequences import enough, more, too_many

ENOUGH_TOKENS = 20_000
"""Fewest prompt tokens for a meaningful hit rate."""
FULL = 0.95
"""Above this share of the KV cache, the next long answer preempts another request."""
ENOUGH_LINES = 6
"""Fewest lines of statistics with requests in them (10 s each) for a meaningful peak."""

_STATISTICS = re.compile(
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs, (?:GPU|CPU|XPU)? ?KV cache usage: "
    r"(?P<usage>[\d.]+)%(?:, Prefix cache hit rate: (?P<hits>[\d.]+)%)?"
)
_PROMPTS = re.compile(r"Avg prompt throughput: (?P<rate>[\d.]+) tokens/s")
_INTERVAL = 10.0
_MAX_NUM_SEQS = re.compile(r"[\"' ]max_num_seqs[\"']?[:=] ?(?P<limit>\d+)")


@dataclass(frozen=True, slots=True)
class Observed:
    """One engine, observed over some time. None stands for a figure it does not report.

    Attributes:
        hit_rate: Share of prompt tokens found in the prefix cache, 0 to 1.
        prompt_tokens: Prompt tokens behind that share.
        most_running: The most sequences that ran at once.
        most_waiting: The most requests that waited at once.
        most_used: The highest use of the KV cache, 0 to 1.
        max_num_seqs: Its limit on sequences.
        preemptions: Requests preempted for lack of KV cache.
        busy: Samples in which something ran.
    """

    hit_rate: float | None = None
    prompt_tokens: float = 0.0
    most_running: int | None = None
    most_waiting: int | None = None
    most_used: float | None = None
    max_num_seqs: int | None = None
    preemptions: float | None = None
    busy: int = 0


def from_log(lines: Iterable[str]) -> Observed:
    """Read the statistics of a log."""
    hit_rate = limit = None
    tokens, running, waiting, used, busy = 0.0, 0, 0, 0.0, 0
    for raw in lines:
        if "reqs" not in raw and "max_num_seqs" not in raw:
            continue
        text = parse(raw).text
        if said := _MAX_NUM_SEQS.search(text):
            limit = int(said["limit"])
        if line := _STATISTICS.search(text):
            if rate := _PROMPTS.search(text):
                tokens += float(rate["rate"]) * _INTERVAL
            running, waiting = max(running, int(line["running"])), max(waiting, int(line["waiting"]))
            used = max(used, float(line["usage"]) / 100)
            busy += int(line["running"]) > 0
            hit_rate = float(line["hits"]) / 100 if line["hits"] else hit_rate
    if not busy:
        return Observed(max_num_seqs=limit)
    return Observed(hit_rate, tokens, running, waiting, used, limit, None, busy)


def from_metrics(samples: Samples) -> Observed:
    """Read vLLM's own metrics: gauges of this moment, and counters since its start."""
    queried = samples.total("vllm:prefix_cache_queries_total") or 0.0
    hits = samples.total("vllm:prefix_cache_hits_total") or 0.0
    used = samples.values("vllm:kv_cache_usage_perc") or samples.values("vllm:gpu_cache_usage_perc")
    running, waiting = (samples.total(f"vllm:num_requests_{state}") for state in ("running", "waiting"))
    return Observed(
        hit_rate=hits / queried if queried else None,
        prompt_tokens=queried,
        most_running=None if running is None else round(running),
        most_waiting=None if waiting is None else round(waiting),
        most_used=max(used, default=None),
        preemptions=samples.total("vllm:num_preemptions_total"),
    )


def from_state(endpoint: Mapping[str, Any]) -> Observed:
    """Read one endpoint's entry in a kvgate's `/kvgate/state`."""
    engine, kv = endpoint.get("engine") or {}, endpoint.get("kv") or {}
    queried, hits = engine.get("prefix_queried_tokens") or 0, engine.get("prefix_hit_tokens") or 0
    return Observed(
        hit_rate=hits / queried if queried else None,
        prompt_tokens=float(queried),
        most_running=endpoint.get("peak_sequences"),
        most_used=kv.get("observed"),
        max_num_seqs=endpoint.get("max_num_seqs"),
        preemptions=engine.get("preemptions"),
        busy=ENOUGH_LINES if queried >= ENOUGH_TOKENS else 0,
    )


def judge(seen: Observed) -> Iterator[Diagnosis]:
    """Say what is wrong with an engine that shows these figures."""
    if seen.hit_rate is not None and seen.hit_rate < LOW_HIT_RATE and seen.prompt_tokens >= ENOUGH_TOKENS:
        yield Diagnosis(
            f"The prefix cache does not pay: {seen.hit_rate:.0%} of the prompts' tokens were in it.",
            "Put what all prompts share first and what changes (time, user, retrieved text) last; send one user's "
            "requests to one engine. Where nothing is shared, --no-enable-prefix-caching saves the hashing.",
            f"prefix cache hit rate {seen.hit_rate:.1%} over {seen.prompt_tokens:,.0f} prompt tokens",
            kind=Kind.SERVICE,
            sign="prefix cache that does not pay",
        )
    if seen.preemptions:
        yield Diagnosis(
            f"{seen.preemptions:,.0f} requests were thrown out of the KV cache and computed again.",
            "Let kvgate admit them (policy `both`), lower --max-num-seqs, or give the KV cache more memory.",
            f"vllm:num_preemptions_total {seen.preemptions:,.0f}",
            kind=Kind.SERVICE,
            sign="preemptions",
        )
    if seen.most_running and seen.max_num_seqs and seen.busy >= ENOUGH_LINES:
        yield from _limit(seen, seen.most_running, seen.max_num_seqs)
    elif seen.most_used is not None and seen.most_used >= FULL and seen.most_waiting:
        yield Diagnosis(
            f"The KV cache is full ({seen.most_used:.0%}) while {seen.most_waiting} requests wait.",
            "Let kvgate admit them, give --kv-cache-dtype fp8 or more memory, or send fewer.",
            f"KV cache usage {seen.most_used:.1%}, waiting {seen.most_waiting}",
            kind=Kind.SERVICE,
            sign="KV cache full",
        )


def _limit(seen: Observed, most: int, limit: int) -> Iterator[Diagnosis]:
    if too_many(limit, most):
        yield Diagnosis(
            f"--max-num-seqs {limit} is far over the {most} sequences that ever ran at once.",
            f"Give --max-num-seqs {enough(most)}: the work space that is kept for the rest goes to the KV cache.",
            f"at most {most} running over {seen.busy} samples",
            kind=Kind.SERVICE,
            sign="max_num_seqs far from use",
        )
    elif most >= limit and seen.most_waiting and seen.most_used is not None and seen.most_used < FULL / 2:
        yield Diagnosis(
            f"{seen.most_waiting} requests waited for one of {limit} places, while the KV cache was never fuller than "
            f"{seen.most_used:.0%}.",
            f"Give --max-num-seqs {more(limit)}.",
            f"running {most} of {limit}, waiting {seen.most_waiting}, KV cache usage {seen.most_used:.1%}",
            kind=Kind.SERVICE,
            sign="max_num_seqs far from use",
        )
