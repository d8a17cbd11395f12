"""What the operator decides about admission."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

FRESH_POLLS = 3.0
"""Polls for which a scrape is fresh. An older one closes nothing by itself: the ledger carries on."""

UNSEEN_SHARE = 1 / 3
"""Most of the cache that may be promised to streams without a token. What they will grow to is yet to come, and an
engine that stands still shows nothing of it: a burst must not fill the cache with prompts. A tenth starved an engine
whose first tokens take a second (0.63 of direct's throughput on a busy machine)."""


LAST_BAND = 9
"""The least urgent. Each band is owed a share of service (`STARVED_SHARE`), so that whoever could wait in any number of
them at once would take it from all the others."""

FORECAST_SHARE = 0.96
"""Most of the cache that the forecast may fill, where no fence is lower: the rest is for what it cannot know."""


class Mode(StrEnum):
    """Whether decisions are carried out or only counted."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Rule(StrEnum):
    """What bounds the use of an endpoint's KV cache."""

    HYSTERESIS = "hysteresis"
    """The gate: closed above `kv_high`, open again below `kv_low`."""
    FORECAST = "forecast"
    """The predicted peak of all that is in flight must fit."""
    BOTH = "both"
    """The forecast, inside the fence of the gate."""


@dataclass(frozen=True, slots=True)
class Band:
    """What one priority band is promised."""

    ttft_target: float | None = None
    """Seconds to the first token; None: the policy's."""
    reserved: float = 0.0
    """Share of service (0 to 1) it gets while somebody waits in it, however much more urgent work there is."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of one controller. Times are seconds, usages shares of an endpoint's KV cache."""

    mode: Mode = Mode.ENFORCE
    kv_high: float = 0.90
    """The gate closes above this effective usage, and no dispatch may take an endpoint beyond it."""
    kv_low: float = 0.80
    """The gate opens again below this effective usage."""
    ttl: float = 60.0
    """Longest wait while an endpoint is live."""
    no_endpoint_ttl: float = 60.0
    """Longest wait while none is."""
    max_requests: int = 2048
    """Most requests that wait."""
    max_bytes: int = 512 * 2**20
    """Most bytes of bodies that wait."""
    rule: Rule = Rule.BOTH
    ttft_target: float | None = 5.0
    """Seconds to the first token. Who surely cannot have it in that time is refused at once, others when it is up.
    None: they wait up to `ttl`."""
    bands: Mapping[int, Band] = field(default_factory=dict)
    """By band; one that is not named has the defaults."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of a flow against the others of its band; 1 where it is not named."""
    max_passes: int = 8
    """How many smaller requests may pass one that does not fit."""
    poll_interval: float = 1.0
    """Time between two scrapes of an endpoint: the measure of how stale a sample is."""
