"""What the controller shows of itself: values for `/kvgate/state` and the metrics."""

from dataclasses import dataclass

from gateway.admission.events import Capacity, EndpointId


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint. Usages are shares of its KV cache, None where nobody knows them."""

    id: EndpointId
    up: bool
    reason: str | None
    """Why it is down."""
    gate_open: bool
    closed_by: tuple[str, ...]
    """Why it takes no more: `gate.Closed`."""
    capacity: Capacity
    ledger_usage: float | None
    observed_usage: float | None
    effective_usage: float | None
    forecast_usage: float | None
    """The predicted peak of what is in flight."""
    held_blocks: int
    in_flight: int
    """Requests whose blocks are reserved, the aborting ones too."""
    aborting: int
    sequences: int
    peak_sequences: int
    """The most at once so far."""
    unconfirmed_sequences: int
    """Those without a token so far."""
    sequence_limit: int | None
    sequence_limit_learned: bool
    decode_rate: float
    """Tokens per second of one sequence, measured; 0 while unknown."""
    scrape_age: float | None
    """Seconds; None before the first scrape."""


@dataclass(frozen=True, slots=True)
class BandState:
    """One priority band of the queue."""

    band: int
    depth: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue."""

    depth: int
    bytes: int
    oldest_age: float
    """Seconds since the first of them arrived; 0 when nobody waits."""
    bands: tuple[BandState, ...]


@dataclass(frozen=True, slots=True)
class PoolState:
    """All of it, at one time."""

    endpoints: tuple[EndpointState, ...]
    queue: QueueState
    drain_rate: float | None
    """Tokens of service (`request.service`) per second that it takes under pressure; None while nothing is known."""
    draining: bool


@dataclass(frozen=True, slots=True)
class Load:
    """How full a pool is: what is cheap to ask for again and again."""

    waiting: int
    """Requests in the queue."""
    sequences: int
    """On its endpoints, ours."""
    usage: tuple[tuple[EndpointId, float], ...]
    """The effective usage of each endpoint that takes traffic, where it is known."""
