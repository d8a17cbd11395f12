"""PURE. The pace of an endpoint: its completions per second, compared between an early and a late stretch.

It shows whether an endpoint got slower at the same work. Fewer completions mean nothing if fewer requests came. So two
stretches are compared only if about as many requests were in flight in both, with similar prompts and answers. A
stretch comes from an event log's requests or, while kvgate runs, from the engine's metrics
(`gateway/endpoints/meter.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

LONG = 60.0
"""Least seconds of each of the two stretches."""
MANY = 100
"""Least requests completed in the first stretch."""
AS_MANY = 0.8
"""Least requests in flight in the last stretch, as a share of those in the first."""
ALIKE = 1.25
"""Largest factor between the mean lengths of both stretches."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request on the endpoint. Times in seconds; `prompt` and `output` in tokens.

    `ended` is None while it runs; `done` says whether its answer is complete.
    """

    began: float
    ended: float | None
    prompt: int
    output: float
    done: bool = True


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of one endpoint's time.

    Attributes:
        seconds: its length.
        rate: requests completed per second.
        in_flight: mean number of requests on the endpoint.
        prompt: mean prompt tokens of the completed requests.
        output: mean generated tokens of the completed requests.
        usage: mean share of its KV cache in use; None if it does not say.
    """

    seconds: float
    rate: float
    in_flight: float
    prompt: int
    output: int
    usage: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """The first and the last third of the time an endpoint served without a break."""

    first: Stretch
    last: Stretch

    @property
    def kept(self) -> float:
        """The last rate as a share of the first."""
        return self.last.rate / self.first.rate


def pace(work: Sequence[Work], usages: Sequence[tuple[float, float]]) -> Pace | None:
    """The change of an endpoint's pace; None if it cannot be told.

    Args:
        work: all requests sent to it while it served without a break.
        usages: for each scrape its time and the share of the KV cache in use.
    """
    ends = [one.ended for one in work if one.ended is not None]
    if not ends:
        return None
    begin, end = min(one.began for one in work), max(ends)
    third = (end - begin) / 3
    return compare(_stretch(work, usages, begin, begin + third), _stretch(work, usages, end - third, end))


def compare(first: Stretch | None, last: Stretch | None) -> Pace | None:
    """The pace from two stretches; None if one is unknown or their work is not alike."""
    if first is None or last is None or min(first.seconds, last.seconds) < LONG:
        return None
    if first.rate * first.seconds < MANY or last.in_flight < AS_MANY * first.in_flight:
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
        round(fmean(one.prompt for one in completed)),
        round(fmean(one.output for one in completed)),
        fmean(used) if used else None,
    )
