"""Which of the endpoints that can take a request gets it."""

from collections.abc import Iterable

from gateway.admission.endpoint import Endpoint


def pick(candidates: Iterable[Endpoint], now: float) -> Endpoint | None:
    """The least effective usage; among equals the fewest requests in flight, then the first by id."""
    return min(candidates, key=lambda e: (e.usage(now) or 0.0, len(e.ledger), e.id), default=None)
