"""PURE. The picture of a gateway at one time, and the changes from one to the next: the data of `/kvgate/events`.

`app/picture_maker.py` makes it, from the figures of `parts.py`, `history.py` and `digest.py`. Times are seconds since
1970 on the clock of the process that decides, as is `Picture.at`: ages follow from it without the reader's clock.
Shares are of 1. No field has text of a prompt or an answer.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

MOST_REQUESTS = 200
"""Requests in a picture: the latest in flight, waiting and ended."""
MOST_FLOWS = 50
"""Flows of a model in a picture: those with the most waiting requests, then those that were served the most."""
SPAN = 900.0
"""Seconds of history."""
RECENT = 300.0
"""Seconds over which outcomes, quantiles and shares are taken."""

Level = Literal["good", "busy", "warn", "bad"]
"""`busy`: all is as it should be at its limit. `warn`: somebody should look. `bad`: requests are lost."""


class Sign(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something worth a look."""

    key: str
    """Tells it from others, also while its text changes."""
    level: Level
    text: str
    """One sentence."""
    do: str | None = None
    """The next step of the person who reads it."""
    since: float | None = None
    """Time at which it was first seen without a break; about 2 seconds coarse."""


class Split(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the KV cache of an endpoint is used for; the shares add up to 1, or to more where the forecast does."""

    running: float
    """Held by requests in flight, without `shared`."""
    shared: float
    """Prefixes that several of them share, counted once."""
    foreign: float
    """By the gauge beyond that: of requests that went around kvgate."""
    promised: float
    """The predicted peak of what is in flight, beyond all that."""
    free: float


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine."""

    id: str
    url: str
    model: str | None
    """None until it was healthy once."""
    kind: str | None
    state: str
    """As in `/kvgate/state`."""
    healthy: bool
    reason: str
    since: float
    """Time of its last change of state."""
    cause: str | None = None
    """As in `/kvgate/state`."""
    remedy: str | None = None
    gate_open: bool = True
    closed_by: tuple[str, ...] = ()
    """Names of the rules that close it."""
    blocks: int | None = None
    block_size: int | None = None
    usage: float | None = None
    """What the gate goes by."""
    forecast: float | None = None
    split: Split | None = None
    """None while the size of its cache is not known."""
    in_flight: int = 0
    sequences: int = 0
    sequence_limit: int | None = None
    preemptions: int | None = None
    """Since kvgate began to watch it."""
    decode_rate: float | None = None
    """Tokens per second of one sequence. No rate is told of an endpoint that takes no traffic and has none."""
    prefill_rate: float | None = None
    """Prompt tokens per second."""
    generated_rate: float | None = None
    """Tokens per second of all sequences, of all clients."""
    scraped: float | None = None
    """Time of the last scrape of its metrics."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds, over the last 5 minutes, from the buckets of the histogram as Prometheus would take them."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Flow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One flow that waits in one band, or of which nothing waits."""

    flow: str
    weight: float
    band: int | None = None
    """None of one of which nothing waits: its requests may have come in any."""
    waiting: int = 0
    oldest: float | None = None
    """Time at which its oldest waiting request arrived."""
    predicted_wait: float | None = None
    """Seconds that its last waiting request has yet to wait."""
    service: float | None = None
    """Its share of the service of the last 5 minutes: prompt tokens and twice the generated ones."""
    due: float | None = None
    """Its share of the weights of the flows shown."""


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model's queue, and what became of its requests."""

    model: str
    waiting: int = 0
    oldest: float | None = None
    flows: tuple[Flow, ...] = ()
    ttft_target: float | None = None
    ttft: Quantiles | None = None
    """From a request's arrival to its first event."""
    gap: Quantiles | None = None
    """Mean time between two tokens of an answer."""
    outcomes: dict[str, int] = {}
    """Of the last 5 minutes."""
    drifted: dict[str, int] = {}
    """Prompts of the last 5 minutes of which the engine's count was another, by who counted and what they brought."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request."""

    key: str
    """The same while it waits, runs and has ended."""
    phase: Literal["waiting", "running", "ended"]
    model: str
    flow: str
    band: int | None = None
    prompt: int | None = None
    generated: int | None = None
    expected: int | None = None
    """Tokens that it is predicted to generate."""
    held: int | None = None
    """Blocks."""
    came: float
    waited: float | None = None
    """Seconds; None while it waits."""
    first: float | None = None
    """Seconds to its first event; None while it is not known."""
    ends: float | None = None
    """Time of its end, predicted while it runs."""
    endpoint: str | None = None
    outcome: str | None = None
    request_id: str | None = None
    """As in the access log; None until it has ended."""


class Gauge(msgspec.Struct, frozen=True, array_like=True):
    """One endpoint in a point of the history. Rates are tokens per second since the point before."""

    usage: float | None
    forecast: float | None
    sequences: int
    open: bool
    generated: float | None
    prompt: float | None
    preempted: int
    """Since the point before."""


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A point of the history. Outcomes are those since the point before."""

    at: float
    waiting: dict[str, int]
    """By model."""
    endpoints: dict[str, Gauge]
    outcomes: dict[str, int]


class Picture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of it."""

    at: float
    version: str
    mode: str
    kv_high: float
    kv_low: float
    headline: Sign
    signs: tuple[Sign, ...] = ()
    """The worst first."""
    endpoints: tuple[Endpoint, ...] = ()
    models: tuple[Model, ...] = ()
    requests: tuple[Request, ...] = ()
    """Those that wait or run, then those that have ended; in each, the latest first."""
    points: tuple[Point, ...] = ()
    """The oldest first."""


class Changes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What differs from the picture before; what is left out does not."""

    at: float
    version: str | UnsetType = UNSET
    mode: str | UnsetType = UNSET
    kv_high: float | UnsetType = UNSET
    kv_low: float | UnsetType = UNSET
    headline: Sign | UnsetType = UNSET
    signs: tuple[Sign, ...] | UnsetType = UNSET
    endpoints: tuple[Endpoint, ...] | UnsetType = UNSET
    models: tuple[Model, ...] | UnsetType = UNSET
    requests: tuple[Request, ...] = ()
    """Those that are new or differ."""
    order: tuple[str, ...] | UnsetType = UNSET
    """The keys of all requests, where that differs."""
    points: tuple[Point, ...] = ()
    """Those that are new."""


_WHOLE = ("version", "mode", "kv_high", "kv_low", "headline", "signs", "endpoints", "models")


def changes(before: Picture, after: Picture) -> Changes:
    """What is new in a picture. `after.points` are only those that `before` has not."""
    whole = {name: new for name in _WHOLE if (new := getattr(after, name)) != getattr(before, name)}
    known = {request.key: request for request in before.requests}
    order = tuple(request.key for request in after.requests)
    return Changes(
        at=after.at,
        requests=tuple(
            request
            for request in after.requests
            if (was := known.get(request.key)) is not request and was != request  # what has ended is the same object
        ),
        order=UNSET if order == tuple(known) else order,
        points=after.points,
        **whole,
    )


def changed(before: Picture, by: Changes) -> Picture:
    """The picture after these changes."""
    whole = {name: new for name in _WHOLE if (new := getattr(by, name)) is not UNSET}
    known = {request.key: request for request in (*before.requests, *by.requests)}
    order = [request.key for request in before.requests] if by.order is UNSET else by.order
    return msgspec.structs.replace(
        before,
        at=by.at,
        requests=tuple(known[key] for key in order),
        points=tuple(point for point in (*before.points, *by.points) if point.at > by.at - SPAN),
        **whole,
    )
