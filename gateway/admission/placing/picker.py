"""The choice among the endpoints that take a request."""

from collections.abc import Sequence

from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.tuning import TUNING


def pick(candidates: Sequence[EndpointRecord], request: RequestRecord, now: float) -> EndpointRecord | None:
    """The endpoint with the least effective usage, after a bonus for a cached prefix; None without candidates.

    Ties go to the fewest requests in flight, then to the first id.
    """
    if len(candidates) <= 1:
        return candidates[0] if candidates else None

    def load(endpoint: EndpointRecord) -> tuple[float, int, str]:
        pull = TUNING.prefix_pull * endpoint.cached(request) / request.size
        return (endpoint.usage(now) or 0.0) - pull, len(endpoint.ledger), endpoint.id

    return min(candidates, key=load)
