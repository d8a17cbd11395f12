"""PURE. Whether an endpoint got slower at the same work: what it completed per second, at first and at last.

Fewer completed are no sign where fewer came. So two stretches of one endpoint are compared only where as many were in
flight in both, and where prompts and answers were alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gateway.record.served import Served, Watched

LONG = 60.0
"""Seconds that each of the two stretches, a third of the time, must have."""
MANY = 100
"""Requests that must have been completed in the first."""
AS_MANY = 0.8
"""Share of those in flight in the first that must be in the last."""
ALIKE = 1.25
"""Factor by which the median lengths may differ."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some time of one endpoint.

    Attributes:
        seconds: how long it was.
        rate: requests completed per second.
        in_flight: that were on it, on average.
        prompt: tokens, the median of those completed.
        output: the same of what was generated.
        usage: share of its KV cache, on average; None where it does not say.
    """

    seconds: float
    rate: float
    in_flight: float
    prompt: int
    output: int
    usage: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """The first and the last third of the time in which an endpoint served without a break."""

    first: Stretch
    last: Stretch

    @property
    def kept(self) -> float:
        """The share of the first pace that was left at last."""
        return self.last.rate / self.first.rate


def pace(watched: Watched, requests: Sequence[Served]) -> Pace | None:
    """How its pace changed; None where that cannot be told.

    Args:
        watched: The endpoint.
        requests: That were sent to it.
    """
    since = watched.up_since
    if since is None:
        return None
    mine = [one for one in requests if one.dispatched_at is not None and one.dispatched_at >= since]
    ends = [one.ended_at for one in mine if one.ended_at is not None]
    if not ends:
        return None
    begin, end = min(one.dispatched_at or 0.0 for one in mine), max(ends)
    third = (end - begin) / 3
    if third < LONG:
        return None
    first, last = (_stretch(watched, mine, start, start + third) for start in (begin, end - third))
    if first is None or last is None or first.rate * third < MANY or last.in_flight < AS_MANY * first.in_flight:
        return None
    lengths = ((first.prompt, last.prompt), (first.output, last.output))
    if any(max(pair) > ALIKE * max(1, min(pair)) for pair in lengths):
        return None
    return Pace(first, last)


def _stretch(watched: Watched, requests: Sequence[Served], begin: float, end: float) -> Stretch | None:
    completed = [one for one in requests if one.done and one.ended_at is not None and begin <= one.ended_at <= end]
    if not completed:
        return None
    there = 0.0
    for one in requests:
        left = end if one.ended_at is None else min(end, one.ended_at)
        there += max(0.0, left - max(begin, one.dispatched_at or 0.0))
    usages = [usage for at, usage in zip(watched.used_at, watched.usages, strict=True) if begin <= at <= end]
    return Stretch(
        end - begin,
        len(completed) / (end - begin),
        there / (end - begin),
        round(median(one.demand.longest_prompt for one in completed)),
        round(median(one.generated / one.demand.sequences for one in completed)),
        fmean(usages) if usages else None,
    )
