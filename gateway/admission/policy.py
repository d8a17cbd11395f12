"""What the operator decides about admission."""

from dataclasses import dataclass
from enum import StrEnum

FRESH_POLLS = 3.0
"""Polls for which a scrape is fresh. An older one closes nothing by itself: the ledger carries on."""

UNSEEN_SHARE = 1 / 3
"""Most of the cache that may be promised to streams without a token. What they will grow to is yet to come, and an
engine that stands still shows nothing of it: a burst must not fill the cache with prompts. A tenth starved an engine
whose first tokens take a second (0.63 of direct's throughput on a busy machine)."""


class Mode(StrEnum):
    """Whether decisions are carried out or only counted."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


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
    poll_interval: float = 1.0
    """Time between two scrapes of an endpoint: the measure of how stale a sample is."""
