"""PURE. Whether a stream came as it was made, or in lumps: who sits in between and holds it back.

A model makes its tokens one after the other, so that their events arrive spread over the time of the whole answer.
Something that buffers (a reverse proxy, a compressor, a gateway of a cloud) hands over many at once: the answer takes
as long, and all of it comes at its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from engine.diagnosis.sign import Diagnosis, Kind

ENOUGH_EVENTS = 8
"""Fewer tell nothing."""
ENOUGH_SECONDS = 0.2
"""An answer that is made faster arrives in few reads without anybody's doing."""
AT_ONCE = 0.0003
"""Seconds: pieces that follow each other faster are of one read, taken apart by the HTTP client. An engine whose tokens
come so fast is over in under `ENOUGH_SECONDS`."""
LUMP = 0.1
"""Share of the answer's time: where all its events came within that, they came in one lump."""


class Flow(Enum):
    """How the events of a stream arrived."""

    SPREAD = "as they were made"
    CHUNKS = "in chunks"
    LUMP = "in one lump"
    UNCLEAR = "too few or too fast to tell"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One streamed answer.

    Attributes:
        pieces: Seconds since the request at which bytes came, and how many events were in them.
        tokens: What the answer's usage says; None where it has none.
        headers: Of the answer, in lower case.
    """

    pieces: Sequence[tuple[float, int]]
    tokens: int | None = None
    headers: Mapping[str, str] | None = None

    @property
    def events(self) -> int:
        """Events of the whole answer."""
        return sum(events for _, events in self.pieces)

    @property
    def reads(self) -> list[tuple[float, int]]:
        """The pieces with events in them, those that came at once as one, at the time of the last."""
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
    # The time to the first token is part of it: a buffer lets it grow to the whole answer's time.
    if last - first <= LUMP * last and len(reads) <= made / 2:
        return Flow.LUMP
    return Flow.CHUNKS if len(reads) <= made / 4 else Flow.SPREAD


def judge(arrivals: Arrivals) -> Diagnosis | None:
    """Say what holds a stream back, or None where nothing does."""
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
