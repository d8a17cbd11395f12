"""A request in flight: the endpoint that has it, what it holds there, and what it has had."""

from gateway.admission.account.ledger import Reservation
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.tuning import TUNING


class InFlight:
    """The endpoint and the reservation of one request in flight."""

    __slots__ = ("_made", "endpoint", "reservation", "tokens")

    def __init__(self, endpoint: EndpointRecord, reservation: Reservation, tokens: float) -> None:
        self.endpoint = endpoint
        self.reservation = reservation
        self.tokens = tokens
        """Expected tokens at its end."""
        self._made: int | None = None
        """Output tokens when it was let go, by the clock; None if it was not."""

    def let_go(self, done_by: float, now: float) -> None:
        """Release its reservation before its end: its engine was done with it by then."""
        self._made = self.generated(done_by)
        self.endpoint.release(self.reservation, None, now, aborted=False)
        self.endpoint.delivering += 1

    def release(self, tokens: int | None, now: float, *, aborted: bool) -> None:
        """Release its reservation at its end, unless it was let go. `tokens`: its output, if that was told."""
        if self._made is not None:
            self.endpoint.delivering -= 1
        else:
            self.endpoint.release(self.reservation, tokens, now, aborted=aborted)

    def generated(self, now: float) -> int:
        """Output tokens so far, as reported or by the clock, which does not go on for what was let go."""
        if self._made is None:
            return self.endpoint.ledger.tokens_so_far(self.reservation, now)
        return max(self.reservation.reported, self._made)

    def held(self, request: RequestRecord, now: float) -> float:
        """Service of one that had no token: what others would have had in its place meanwhile.

        Free of charge, a flow whose requests the engine refuses or fails on went first at every place that it freed.
        """
        rate = max(self.endpoint.decode_rate, TUNING.place_rate) * self.reservation.sequences
        tokens = (now - self.reservation.sent_at) * rate
        return min(TUNING.output_weight * tokens, request.cost)
