"""A request in flight: the endpoint that has it, what it holds there, and what it has had."""

from math import inf

from gateway.admission.account.ledger import Reservation
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import Charge
from gateway.admission.tuning import TUNING


class InFlight:
    """The endpoint and the reservation of one request in flight."""

    __slots__ = ("_done_by", "_made", "charge", "endpoint", "reservation", "tokens")

    def __init__(self, endpoint: EndpointRecord, reservation: Reservation, tokens: float, charge: Charge) -> None:
        self.endpoint = endpoint
        self.reservation = reservation
        self.tokens = tokens
        """Expected tokens at its end."""
        self.charge = charge
        self._made: int | None = None
        """Output tokens when it was let go, by the clock; None if it was not."""
        self._done_by = inf
        """When its engine was done with it, if it was let go."""

    def let_go(self, done_by: float, now: float) -> None:
        """Release its reservation before its end: its engine was done with it by then."""
        self._made, self._done_by = self.generated(done_by), done_by
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

    def held(self, now: float, tokens: int | None) -> float:
        """Service that others would have had in its place until its first token.

        Else a flow whose requests wait in the engine for what they name, as for an image, and then fail, leave or end
        after a token, went first at every place that it freed.

        Args:
            now: The time, seconds.
            tokens: All that it had, 0 also if none were told; None while it runs. Those of a whole answer are not seen:
                they count as having come last, in one sequence, and only the endpoint can tell their pace.
        """
        reservation = self.reservation
        until = min(now, reservation.first_token_at, self._done_by)
        pace = self.endpoint.decode_rate
        if reservation.streamed or tokens == 0:
            pace = pace or TUNING.place_rate
        unseen = tokens or 0 if reservation.first_token_at == inf else 0
        return TUNING.output_weight * reservation.sequences * (pace * (until - reservation.sent_at) - unseen)
