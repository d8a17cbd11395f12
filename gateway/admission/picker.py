"""Which of the endpoints that can take a request gets it."""

from collections.abc import Sequence

from gateway.admission.endpoint import Endpoint


def pick(candidates: Sequence[Endpoint], now: float) -> Endpoint | None:
    """The least effective usage; among equals the fewest requests in flight, then the first by id."""
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda e: (e.usage(now) or 0.0, len(e.ledger), e.id), default=None)
