"""The operator's settings of admission."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

LAST_BAND = 9
"""The least urgent band. Each band is owed a share of service (`starved_share`), so a client that could wait in any
number of bands at once would take service from all others."""


class Mode(StrEnum):
    """Mode of admission: decisions are carried out, or only counted."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Bounds(StrEnum):
    """The bounds on the use of an endpoint's KV cache: the setting `admission.policy`."""

    HYSTERESIS = "hysteresis"
    """The gate: closed above `kv_high`, open again below `kv_low`."""
    FORECAST = "forecast"
    """The predicted peak of all requests in flight must fit."""
    BOTH = "both"
    """The forecast, within `kv_high`, so that the gate stays open."""


@dataclass(frozen=True, slots=True)
class Band:
    """The settings of one priority band."""

    ttft_target: float | None = None
    """Seconds to the first token; None: the policy's."""
    reserved: float = 0.0
    """Share of service (0 to 1) while a request waits in it, however much urgent work there is."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All settings of one controller; the setting `admission.policy` is its `bounds`.

    Times are seconds, usages shares of an endpoint's KV cache.
    """

    mode: Mode = Mode.ENFORCE
    kv_high: float = 0.90
    """The gate closes above this effective usage, and no dispatch may take an endpoint beyond it."""
    kv_low: float = 0.80
    """The gate opens again below this effective usage."""
    ttl: float = 60.0
    """Longest wait while an endpoint is live."""
    no_endpoint_ttl: float = 60.0
    """Longest wait while no endpoint is live."""
    max_requests: int = 2048
    """Most waiting requests."""
    max_bytes: int = 2 * 2**30
    """Most bytes of waiting bodies."""
    bounds: Bounds = Bounds.BOTH
    ttft_target: float | None = 5.0
    """Seconds to the first token. A request that surely misses it is refused at once, one that waits when its queue
    budget is used up. None: requests wait up to `ttl`."""
    bands: Mapping[int, Band] = field(default_factory=dict)
    """By band; a band without an entry has the defaults."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of a flow against the others of its band; 1 without an entry."""
    kv_shares: Mapping[str, float] = field(default_factory=dict)
    """Most of the pool's KV cache that a flow may hold (0 to 1); all without an entry."""
    max_passes: int = 8
    """Most requests backfilled before one that does not fit."""
    poll_interval: float = 1.0
    """Time between two scrapes of an endpoint: the unit of a sample's age."""
