"""The limits that may be set for a tenant, and where it stands with them."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one tenant; None: unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together."""
    concurrent: int | None = None
    """Most requests that wait or run at once."""

    def part(self, share: float) -> "Limits":
        """A share of them, for one of several that cannot ask each other; at least 1, or nobody would let it in."""
        each = (self.requests_per_minute, self.tokens_per_minute, self.concurrent)
        return Limits(*[None if limit is None else max(1, int(limit * share)) for limit in each])


class Limit(StrEnum):
    """One of the limits. The value is its name for clients."""

    REQUESTS = "requests per minute"
    TOKENS = "tokens per minute"
    CONCURRENT = "concurrent requests"
    KV = "tokens of this model's KV cache"


@dataclass(frozen=True, slots=True)
class Quota:
    """What is left of a rate: OpenAI's `x-ratelimit-limit-*`, `-remaining-*` and `-reset-*`."""

    limit: int
    remaining: int
    reset: float
    """Seconds until all of it is there again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a tenant stands with its rates; None: it has no such limit."""

    requests: Quota | None
    tokens: Quota | None


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The limit by which a request was refused.

    `asked` is in the limit's unit. `retry_after` is in seconds: when the limit allows it, if no other request takes its
    place; None if it is more than the limit ever allows, or if it waits for others to end.
    """

    which: Limit
    limit: int
    asked: int
    retry_after: float | None
