"""Which of the endpoints that can take a request gets it."""

from collections.abc import Sequence

from gateway.admission.endpoint import Endpoint
from gateway.admission.request import Request

PREFIX_PULL = 0.3
"""How much fuller an endpoint may be, as a share of its KV cache, and be preferred for having the prompt cached."""


def pick(candidates: Sequence[Endpoint], request: Request, now: float) -> Endpoint | None:
    """The least effective usage, less what a cached prefix is worth.

    Among equals the fewest requests in flight, then the first by id.
    """
    if len(candidates) <= 1:
        return candidates[0] if candidates else None

    def load(endpoint: Endpoint) -> tuple[float, int, str]:
        pull = PREFIX_PULL * endpoint.cached(request) / request.size
        return (endpoint.usage(now) or 0.0) - pull, len(endpoint.ledger), endpoint.id

    return min(candidates, key=load)
