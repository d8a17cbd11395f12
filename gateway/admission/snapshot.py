"""Snapshots of the core, for `/kvgate/state` and the metrics."""

from dataclasses import dataclass

from gateway.admission.events import Capacity, EndpointId, RequestId


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
    kv_load: float | None
    """Tokens that its KV cache is filled to as the policy counts: by the forecast, or by effective usage."""
    kv_room: float | None
    """Tokens that the policy may fill it to."""
    held_blocks: int
    shared_blocks: int
    """Blocks that several requests in flight share, counted once."""
    used_blocks: int
    """As `held_blocks`, with shared blocks counted once."""
    beyond_blocks: float
    """In use by the gauge beyond that: of others; negative if the engine holds fewer."""
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
    prefill_rate: float
    """Measured prompt tokens per second; 0 while unknown."""
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
class Turn:
    """The turn of a waiting request, if nobody else comes."""

    position: int | None
    """1 is the next to go; None if it has just come."""
    eta: float | None
    """Predicted seconds until then; None while the pace of the pool is unknown."""
    rule: str | None = None
    """Why it does not go now, see `why_waiting`."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The signals that an autoscaler goes by."""

    saturation: float | None
    """What runs and waits as a share of what its live endpoints may be filled to: 1 is at target. None if unknown."""
    backlog_seconds: float | None
    """Service that waits, divided by the drain rate; 0 if nobody waits, None while the rate is unknown."""
    waiting_without_endpoint: int
    """Requests that wait while no endpoint is live."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The whole pool at one time."""

    endpoints: tuple[EndpointSnapshot, ...]
    queue: QueueSnapshot
    scaling: Scaling
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


@dataclass(frozen=True, slots=True)
class FlowSnapshot:
    """What waits of one flow in one band."""

    band: int
    flow: str
    weight: float
    waiting: int
    oldest_at: float
    """When the oldest arrived."""
    predicted_wait: float | None
    """Seconds that the last of them has yet to wait; None while no drain rate is known."""


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """One request that waits or is in flight. Tokens are those of all its sequences."""

    request: RequestId
    flow: str
    band: int
    endpoint: EndpointId | None
    """None while it waits."""
    arrived_at: float
    sent_at: float | None
    """When it was dispatched; None while it waits."""
    prompt_tokens: int
    generated: int
    expected: int
    """Tokens that it is predicted to generate; 0 while it waits."""
    held_blocks: int
    ends_at: float | None
    """Predicted end; None while it waits, or the decode rate is not known."""
