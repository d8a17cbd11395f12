"""What the admission core asks for."""

from dataclasses import dataclass

from gateway.admission.events import EndpointId, RequestId
from gateway.admission.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to this endpoint now: its reservation is held."""

    request: RequestId
    endpoint: EndpointId
    would: str | None = None
    """Only in observe mode: what `enforce` would have done instead, "queued" or an outcome."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The request ends here, unanswered by any endpoint."""

    request: RequestId
    outcome: Outcome
    retry_after: float | None = None
    """Seconds, from the measured drain rate and already jittered; None where a retry makes no sense."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this time. Each replaces the one before."""

    at: float


Command = Dispatch | Reject | WakeAt
