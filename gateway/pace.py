"""PURE. Whether an endpoint got slower at the same work: what it completed per second, at first and at last.

Fewer completed are no sign where fewer came. So two stretches of one endpoint are compared only where as many were in
flight in both, and where prompts and answers were alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

LONG = 60.0
"""Seconds that each of the two stretches, a third of the time, must have."""
MANY = 100
"""Requests that must have been completed in the first."""
AS_MANY = 0.8
"""Share of those in flight in the first that must be in the last."""
ALIKE = 1.25
"""Factor by which the median lengths may differ."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request on the endpoint. Times in seconds; `prompt` and `output` in tokens.

    `ended` is None while it goes on, and `done` says whether its answer came to its end.
    """

    began: float
    ended: float | None
    prompt: int
    output: float
    done: bool = True


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


def pace(work: Sequence[Work], usages: Sequence[tuple[float, float]]) -> Pace | None:
    """How its pace changed; None where that cannot be told.

    Args:
        work: All that was sent to it while it served without a break.
        usages: When it was asked how full its KV cache is, and the share that it was.
    """
    ends = [one.ended for one in work if one.ended is not None]
    if not ends:
        return None
    begin, end = min(one.began for one in work), max(ends)
    third = (end - begin) / 3
    if third < LONG:
        return None
    first, last = (_stretch(work, usages, start, start + third) for start in (begin, end - third))
    if first is None or last is None or first.rate * third < MANY or last.in_flight < AS_MANY * first.in_flight:
        return None
    lengths = ((first.prompt, last.prompt), (first.output, last.output))
    if any(max(pair) > ALIKE * max(1, min(pair)) for pair in lengths):
        return None
    return Pace(first, last)


def _stretch(work: Sequence[Work], usages: Sequence[tuple[float, float]], begin: float, end: float) -> Stretch | None:
    completed = [one for one in work if one.done and one.ended is not None and begin <= one.ended <= end]
    if not completed:
        return None
    there = sum(max(0.0, min(end, end if one.ended is None else one.ended) - max(begin, one.began)) for one in work)
    used = [usage for at, usage in usages if begin <= at <= end]
    return Stretch(
        end - begin,
        len(completed) / (end - begin),
        there / (end - begin),
        round(median(one.prompt for one in completed)),
        round(median(one.output for one in completed)),
        fmean(used) if used else None,
    )
