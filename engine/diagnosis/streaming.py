"""PURE. The check for buffering between engine and client: did the events of a stream arrive as made, or in lumps?

A model makes its tokens one after the other, so their events arrive spread over the whole answer's time. A buffer (a
reverse proxy, a compressor, a cloud's gateway) hands over many at once: the answer takes as long, but all of it comes
at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from engine.diagnosis.sign import Diagnosis, Kind

ENOUGH_EVENTS = 8
"""Fewer events allow no judgement."""
ENOUGH_SECONDS = 0.2
"""A faster answer arrives in few reads without any buffer."""
AT_ONCE = 0.0003
"""Seconds. Pieces that follow each other faster belong to one read, which the HTTP client took apart. An engine with
tokens that fast finishes in under `ENOUGH_SECONDS`."""
LUMP = 0.1
"""Share of the answer's time. Events that all came within it came in one lump."""


class Flow(Enum):
    """The ways a stream's events arrive."""

    SPREAD = "as they were made"
    CHUNKS = "in chunks"
    LUMP = "in one lump"
    UNCLEAR = "too few or too fast to tell"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One streamed answer.

    Attributes:
        pieces: For each arrival of bytes, seconds since the request and the number of events.
        tokens: The answer's usage; None if it has none.
        headers: The answer's headers, in lower case.
    """

    pieces: Sequence[tuple[float, int]]
    tokens: int | None = None
    headers: Mapping[str, str] | None = None

    @property
    def events(self) -> int:
        """Number of events in the whole answer."""
        return sum(events for _, events in self.pieces)

    @property
    def reads(self) -> list[tuple[float, int]]:
        """The pieces with events. Pieces that came at once are one, at the time of the last."""
        found: list[tuple[float, int]] = []
        for at, events in self.pieces:
            if events and found and at - found[-1][0] <= AT_ONCE:
                found[-1] = at, found[-1][1] + events
            elif events:
                found.append((at, events))
        return found


def flow(arrivals: Arrivals) -> Flow:
    """Judge how a stream arrived."""
    reads = arrivals.reads
    made = max(arrivals.events, arrivals.tokens or 0)
    if made < ENOUGH_EVENTS or not reads or reads[-1][0] < ENOUGH_SECONDS:
        return Flow.UNCLEAR
    first, last = reads[0][0], reads[-1][0]
    # It includes the time to the first token, which a buffer stretches to the whole answer's time.
    if last - first <= LUMP * last and len(reads) <= made / 2:
        return Flow.LUMP
    return Flow.CHUNKS if len(reads) <= made / 4 else Flow.SPREAD


def judge(arrivals: Arrivals) -> Diagnosis | None:
    """Report a buffer that holds the stream back, or None if there is none."""
    came = flow(arrivals)
    if came not in {Flow.LUMP, Flow.CHUNKS}:
        return None
    reads = arrivals.reads
    headers = arrivals.headers or {}
    seen = ", ".join(f"{name}: {headers[name]}" for name in _TELLING if name in headers)
    return Diagnosis(
        f"Something between here and the engine buffers the stream: its events came {came.value}.",
        _WAY_OUT,
        f"{arrivals.events} events of {arrivals.tokens or '?'} tokens came in {len(reads)} reads, the first after "
        f"{reads[0][0]:.2f} s and the last after {reads[-1][0]:.2f} s" + (f" ({seen})" if seen else ""),
        kind=Kind.SERVICE,
        sign="stream buffered",
    )


_TELLING = ("server", "via", "content-encoding", "content-length", "x-cache", "cf-ray")
_WAY_OUT = (
    "nginx: `proxy_buffering off; proxy_http_version 1.1; gzip off;` for this location (deploy/nginx has it). "
    'ingress-nginx: the annotation nginx.ingress.kubernetes.io/proxy-buffering: "off". Others: no compression and no '
    "response cache for text/event-stream."
)
