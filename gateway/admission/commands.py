"""The commands of the admission core to its driver."""

from dataclasses import dataclass, field

from gateway.admission.events import EndpointId, RequestId
from gateway.admission.limits.limit import Exceeded, Standing
from gateway.admission.outcomes import Outcome
from gateway.admission.value import value


@value(frozen=True, slots=True)
class Dispatch:
    """Send the request to this endpoint now. Its reservation is made."""

    request: RequestId
    endpoint: EndpointId
    would: str | None = None
    """In observe mode, what `enforce` would have done instead: "queued" or an outcome."""
    standing: Standing | None = None
    """Where its tenant stands with its rates; the driver adds it."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse the request: it ends without an answer from an endpoint."""

    request: RequestId
    outcome: Outcome
    retry_after: float | None = None
    """Seconds until a retry makes sense; None if that is unknown, or a retry makes none."""
    exceeded: Exceeded | None = None
    """The limit of its tenant that it exceeds, or for which it waited."""
    standing: Standing | None = None
    """As for `Dispatch`."""
    rule: str | None = field(default=None, compare=False)
    """The rule of `REASONS` or `RULES` that refused it on arrival; None if it waited in vain."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this time. It replaces the earlier `WakeAt`."""

    at: float


Command = Dispatch | Reject | WakeAt
