"""Snapshots of the core, for `/kvgate/state` and the metrics."""

from dataclasses import dataclass

from gateway.admission.events import Capacity, EndpointId


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """One endpoint. Usages are shares of its KV cache; None if unknown."""

    id: EndpointId
    up: bool
    reason: str | None
    """Why it is down."""
    gate_open: bool
    closed_by: tuple[str, ...]
    """Names of the rules that close it (`RULES`)."""
    capacity: Capacity
    ledger_usage: float | None
    observed_usage: float | None
    effective_usage: float | None
    forecast_usage: float | None
    """Predicted peak of its requests in flight."""
    held_blocks: int
    in_flight: int
    """Requests with reserved blocks, including aborted ones."""
    aborting: int
    sequences: int
    peak_sequences: int
    """Most sequences at once so far."""
    unconfirmed_sequences: int
    """Sequences without a token so far."""
    sequence_limit: int | None
    sequence_limit_learned: bool
    decode_rate: float
    """Measured tokens per second of one sequence; 0 while unknown."""
    scrape_age: float | None
    """Seconds; None before the first scrape."""


@dataclass(frozen=True, slots=True)
class BandSnapshot:
    """One priority band of the queue."""

    band: int
    depth: int


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue."""

    depth: int
    bytes: int
    oldest_age: float
    """Seconds since the oldest waiting request arrived; 0 if none waits."""
    bands: tuple[BandSnapshot, ...]


@dataclass(frozen=True, slots=True)
class PoolState:
    """The whole pool at one time."""

    endpoints: tuple[EndpointSnapshot, ...]
    queue: QueueSnapshot
    drain_rate: float | None
    """Tokens of service (`request.service`) per second under pressure; None while unknown."""
    draining: bool


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a pool: cheap to read often."""

    waiting: int
    """Requests in the queue."""
    sequences: int
    """Our sequences on its endpoints."""
    usage: tuple[tuple[EndpointId, float], ...]
    """Effective usage of each endpoint that takes traffic, if known."""
