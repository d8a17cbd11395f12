"""The promise of a turn to one refused request."""

from gateway.admission.outcomes import Outcome


class Promise:
    """A turn kept for one refused request until it comes back."""

    __slots__ = ("band", "cost", "due", "ended", "fingerprint", "flow", "order", "outcome", "spans", "until", "used")

    def __init__(
        self,
        fingerprint: int,
        band: int,
        flow: str,
        *,
        order: int,
        outcome: Outcome,
        due: float,
        until: float,
        cost: float,
    ) -> None:
        self.fingerprint = fingerprint
        self.band = band
        self.flow = flow
        self.order = order
        """Its turn in the queue, from its first arrival."""
        self.outcome = outcome
        """The outcome it was refused with."""
        self.due = due
        """Time at which it should come back. It has its turn if it comes back from then to `until`."""
        self.until = until
        self.cost = cost
        """Tokens of service promised."""
        self.spans = (0.0, 0.0)
        """Seconds that this service takes at its flow's share of the drain rate, and at the whole rate."""
        self.used = False
        """Whether its request came back, or the promise expired."""
        self.ended = False
        """Whether the promise has ended: its request left the queue again, or never came back."""
