"""Records of requests that were never sent."""

from array import array

from loadtests.arrivals import Planned
from loadtests.client import Record


def whole(at: float = 0.0, *, ttft: float = 0.1, gaps: tuple[float, ...] = (0.1,), flow: str = "a") -> Record:
    first, tokens = at + ttft, len(gaps) + 1
    planned = Planned(0, at, flow, 0, prompt=10, output=tokens, max_tokens=tokens)
    ended = first + sum(gaps)
    return Record(planned, at, at, first, ended, array("d", gaps), tokens, status=200)


def refused(at: float = 0.0, *, flow: str = "a", retry_after: float = 2.0) -> Record:
    planned = Planned(0, at, flow, 0, prompt=10, output=2, max_tokens=2)
    return Record(
        planned, at, at, ended=at, status=429, code="wait_too_long", retry_after=retry_after, loss="status 429"
    )


def lost(at: float = 0.0, *, flow: str = "a") -> Record:
    record = whole(at, flow=flow)
    record.loss = "connection closed"
    return record
