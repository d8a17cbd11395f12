"""PURE. The traffic of real requests: lengths, concurrency, and the share of prompts found in the prefix cache.

A plan from a model's maximum is for a request nobody sends; real traffic is a better basis. Figures from single
requests are exact. Those from a Prometheus histogram lie between two edges of its buckets and are given as a range that
surely holds them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from engine.plan.histogram import Distribution, Histogram, Range, rank_of, summed
from engine.plan.samples import Samples

__all__ = [
    "LOW_HIT_RATE",
    "Distribution",
    "Range",
    "Seen",
    "Traffic",
    "TrafficError",
    "from_exposition",
    "from_lengths",
]


LOW_HIT_RATE = 0.3
"""Below this share of cached prompt tokens the prefix cache costs more attention than it saves."""


class TrafficError(Exception):
    """No traffic can be read from a source. The message names the source and says what was expected."""


class Seen(NamedTuple):
    """One request that was served.

    Attributes:
        at: arrival at an engine, in seconds.
        prompt: tokens.
        output: tokens, of each of its sequences.
        duration: seconds until its answer was complete; None if the source does not tell.
        sequences: answers generated for it at once.
    """

    at: float
    prompt: int
    output: int
    duration: float | None = None
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """The figures of observed traffic. None means that the source does not tell.

    Attributes:
        source: its file or URL, for a person.
        requests: number of requests an engine served.
        span: seconds from the first to the last of them; for a running server, since it started.
        prompt_tokens: tokens of a request's prompt.
        output_tokens: tokens generated for a request, in each of its sequences.
        total_tokens: both together, for one request: its KV cache in the end.
        concurrency: sequences running at once in all engines of the source, over time; `most` is the peak.
        now: sequences that run or wait in a server's engines at this moment.
        hit_rate: share of prompt tokens found in the prefix cache, 0 to 1.
    """

    source: str
    requests: int
    span: float | None = None
    prompt_tokens: Distribution | None = None
    output_tokens: Distribution | None = None
    total_tokens: Distribution | None = None
    concurrency: Distribution | None = None
    now: int | None = None
    hit_rate: float | None = None


def from_lengths(source: str, requests: Iterable[Seen]) -> Traffic:
    """Traffic from single requests, in any order. Concurrency is known if every request has a duration."""
    seen = sorted(requests, key=lambda one: one.at)
    if not seen:
        return Traffic(source, 0)
    ends = [one.at + (one.duration or 0.0) for one in seen]
    return Traffic(
        source,
        len(seen),
        span=max(ends) - seen[0].at,
        prompt_tokens=_exactly([one.prompt for one in seen]),
        output_tokens=_exactly([one.output for one in seen]),
        total_tokens=_exactly([one.prompt + one.output for one in seen]),
        concurrency=_concurrency(seen) if all(one.duration is not None for one in seen) else None,
    )


def _exactly(values: list[int]) -> Distribution:
    values.sort()
    p50, p99 = (values[rank_of(share, len(values)) - 1] for share in (0.5, 0.99))
    return Distribution(Range(p50, p50), Range(p99, p99), Range(values[-1], values[-1]))


def _concurrency(seen: Sequence[Seen]) -> Distribution:
    """The number of sequences running at once, weighted by time."""
    changes: dict[float, int] = {}
    for one in seen:
        end = one.at + (one.duration or 0.0)
        changes[one.at] = changes.get(one.at, 0) + one.sequences
        changes[end] = changes.get(end, 0) - one.sequences
    times = sorted(changes)
    running = list(accumulate(changes[time] for time in times))
    lasted: dict[int, float] = {}
    for number, since, until in zip(running, times, times[1:], strict=False):
        lasted[number] = lasted.get(number, 0.0) + until - since
    if not lasted:
        lasted[sum(one.sequences for one in seen)] = 1.0

    def quantile(share: float) -> Range:
        wanted, passed = share * sum(lasted.values()), 0.0
        for number in sorted(lasted):
            passed += lasted[number]
            if passed >= wanted * (1 - 1e-9):
                return Range(number, number)
        raise AssertionError("unreachable: all of the time has passed")

    most = max(lasted)
    return Distribution(quantile(0.5), quantile(0.99), Range(most, most))


@dataclass(frozen=True, slots=True)
class _Families:
    """One kind of server's names for the figures: for each, the sample and its required labels."""

    prompt: tuple[str, Mapping[str, str]]
    output: tuple[str, Mapping[str, str]]
    total: tuple[str, Mapping[str, str]] | None
    concurrency: tuple[str, Mapping[str, str]] | None
    peak: str | None
    queried: tuple[str, Mapping[str, str]]
    hit: tuple[str, Mapping[str, str]]
    now: tuple[str, ...]
    model: str
    """The label that names the model."""


_TOKENS = "kvgate_request_tokens"
_CACHED = "kvgate_engine_prefix_cache_tokens_total"
_KVGATE = _Families(
    prompt=(_TOKENS, {"kind": "prompt"}),
    output=(_TOKENS, {"kind": "output"}),
    total=(_TOKENS, {"kind": "total"}),
    concurrency=("kvgate_sequences_over_time", {}),
    peak="kvgate_sequences_peak",
    queried=(_CACHED, {"kind": "queried"}),
    hit=(_CACHED, {"kind": "hit"}),
    now=("kvgate_in_flight",),
    model="model",
)
_VLLM = _Families(
    prompt=("vllm:request_prompt_tokens", {}),
    output=("vllm:request_generation_tokens", {}),
    total=None,
    concurrency=None,
    peak=None,
    queried=("vllm:prefix_cache_queries_total", {}),
    hit=("vllm:prefix_cache_hits_total", {}),
    now=("vllm:num_requests_running", "vllm:num_requests_waiting"),
    model="model_name",
)
"""From `vllm/v1/metrics/loggers.py` (0.32; unchanged since 0.8.5). It has no histogram of whole lengths, and none of
concurrency."""


def from_exposition(
    source: str, text: str, *, now: float, longest: int | None = None, model: str | None = None
) -> Traffic:
    """Traffic from the metrics of a vLLM or a kvgate, since it started.

    Args:
        source: where the text is from.
        text: the answer to `GET /metrics`.
        now: seconds since 1970.
        longest: most tokens of a request (`max_model_len`), if known.
        model: the model whose lengths and concurrency to take; None for all models together.

    Raises:
        TrafficError: the text has no lengths of requests.
    """
    try:
        samples = Samples(text)
    except ValueError as error:
        raise TrafficError(f"{source}: expected metrics in Prometheus' text format: {error}") from None
    families = next((known for known in (_KVGATE, _VLLM) if samples.has(f"{known.prompt[0]}_count")), None)
    if families is None:
        raise TrafficError(
            f"{source}: expected the metrics of a kvgate ({_TOKENS}) or of a vLLM ({_VLLM.prompt[0]}), found neither"
        )
    only = {} if model is None else {families.model: model}

    def histogram(family: tuple[str, Mapping[str, str]]) -> Histogram:
        return samples.histogram(family[0], {**family[1], **only})

    prompt, output = histogram(families.prompt), histogram(families.output)
    total = summed(prompt, output) if families.total is None else histogram(families.total).distribution()
    together = None if families.concurrency is None else histogram(families.concurrency).distribution()
    if together is not None and families.peak is not None and model is None:
        together = _with_peaks(together, samples.values(families.peak))
    queried, hit = samples.total(*families.queried), samples.total(*families.hit)
    started = samples.total("process_start_time_seconds")
    return Traffic(
        source,
        prompt.count,
        span=None if started is None else max(0.0, now - started),
        prompt_tokens=_at_most(prompt.distribution(), longest),
        output_tokens=_at_most(output.distribution(), longest),
        total_tokens=_at_most(total, longest),
        concurrency=together,
        now=round(sum(samples.total(name) or 0.0 for name in families.now)),
        hit_rate=hit / queried if queried and hit is not None else None,
    )


def _with_peaks(sampled: Distribution, peaks: Sequence[float]) -> Distribution:
    """The sampled concurrency, plus each engine's peak, which no sample may have met."""
    if not peaks:
        return sampled
    low = max(sampled.most.low, round(max(peaks)))
    return replace(sampled, most=Range(low, max(low, round(sum(peaks)))))


def _at_most(of: Distribution | None, longest: int | None) -> Distribution | None:
    if of is None or longest is None:
        return of
    p50, p99, most = (replace(one, high=max(one.low, min(one.high, longest))) for one in (of.p50, of.p99, of.most))
    return Distribution(p50, p99, most)
