"""PURE. What requests really were: their lengths, how many ran at once, and how much of their prompts was shared.

A plan made from a model's maximum is made for a request nobody sends. This is what it is made from instead. Figures
out of single requests are exact; those out of a Prometheus histogram lie between two edges of its buckets, and are
told as the range that surely holds them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """A figure that is at least `low` and at most `high`; equal where it is known exactly. Both are finite."""

    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a figure is spread: half of all values are at most `p50`, 99 of 100 at most `p99`, all at most `most`."""

    p50: Range
    p99: Range
    most: Range


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was seen. None means that the source does not tell.

    Attributes:
        source: where it comes from, for a person: a file or a URL.
        requests: how many were seen that an engine served.
        span: seconds from the first to the last of them.
        prompt_tokens: tokens of a request's prompt.
        output_tokens: tokens that were generated for a request.
        total_tokens: both of one request together: what it holds of the KV cache in the end.
        concurrency: sequences that an engine was at, all engines of the source together, over time; `most` is the peak.
        hit_rate: share of prompt tokens that the prefix cache had, 0 to 1.
    """

    source: str
    requests: int
    span: float | None = None
    prompt_tokens: Distribution | None = None
    output_tokens: Distribution | None = None
    total_tokens: Distribution | None = None
    concurrency: Distribution | None = None
    hit_rate: float | None = None
