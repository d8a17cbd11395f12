"""What the requests in flight on one endpoint will come to: each one's end, and the peak of them all."""

from gateway.admission.forecast import Forecast, Row
from gateway.admission.ledger import Ledger, Reservation
from gateway.admission.level import Level
from gateway.admission.predictor import Predictor

HOLDS = 200e-6
"""Seconds, for each request in it, that a forecast holds although some have come or gone: making it anew takes about
half a microsecond for each, so this bounds what it costs, however busy the endpoint."""
FRESH = 0.25
"""Seconds for which a forecast holds at most: requests go on, and some outlive their predictions."""
REVIEW = 4
"""A prediction is reviewed when the tokens it leaves have shrunk to one part in so many."""


class Outlook:
    """Predictions and the forecast of one endpoint.

    The forecast is made anew as requests come and go, in proportion to their number, so that its cost for each
    stays the same. In between it is never too low: who came since counts in full, at its end, and who left counts on.
    """

    __slots__ = ("_arrived", "_changed", "_forecast", "_ledger", "_made_at", "_predictor", "level")

    def __init__(self, ledger: Ledger, predictor: Predictor) -> None:
        self._ledger = ledger
        self._predictor = predictor
        self.level = Level()
        self._forecast = Forecast(())
        self._made_at = 0.0
        self._changed = False
        self._arrived = 0
        """Tokens at their ends of those that came since."""

    def came(self, reservation: Reservation, block_size: int) -> None:
        """A request was sent to the endpoint, its `expected` set."""
        reservation.review = _review(reservation.expected, reservation.generated)
        remaining, holds, grows = _row(reservation, block_size)
        self._arrived += holds + remaining * grows
        self._changed = True

    def left(self) -> None:
        """A request left the endpoint."""
        self._changed = True

    def peak(self, block_size: int, now: float) -> int:
        """Tokens that the endpoint will hold at its fullest. Leaves no trace."""
        forecast, arrived = self._current(block_size, now, peek=True)
        return forecast.peak + arrived + self._ledger.shared_tokens

    def peak_with(self, row: Row, block_size: int, now: float, *, peek: bool = False) -> int:
        """The same with one more request. `peek` leaves no trace."""
        forecast, arrived = self._current(block_size, now, peek=peek)
        return forecast.with_request(row) + arrived + self._ledger.shared_tokens

    def _current(self, block_size: int, now: float, *, peek: bool) -> tuple[Forecast, int]:
        """The forecast, and the tokens that have come since it was made."""
        longest = min(FRESH, len(self._ledger) * HOLDS) if self._changed else FRESH
        if now - self._made_at < longest:
            return self._forecast, self._arrived
        rows = []
        for reservation in self._ledger:
            expected = reservation.expected
            if reservation.generated >= reservation.review:
                expected = self._predicted(reservation)
                if not peek:
                    reservation.expected = expected
                    reservation.review = _review(expected, reservation.generated)
            holds = reservation.held * block_size - reservation.shared
            rows.append((max(0, expected - reservation.generated), holds, reservation.sequences))
        forecast = Forecast(rows)
        if not peek:
            self._forecast, self._made_at, self._changed, self._arrived = forecast, now, False, 0
        return forecast, 0

    def _predicted(self, reservation: Reservation) -> int:
        return self._predictor.predict(reservation.kind, self.level.value, reservation.generated, reservation.limit)


def _review(expected: int, generated: int) -> int:
    return expected - (expected - generated) // REVIEW


def _row(reservation: Reservation, block_size: int) -> Row:
    holds = reservation.held * block_size - reservation.shared
    return max(0, reservation.expected - reservation.generated), holds, reservation.sequences
