"""What the requests in flight on one endpoint will come to: each one's end, and the peak of them all."""

from gateway.admission.forecast import Ends, Forecast, Row
from gateway.admission.ledger import Ledger, Reservation
from gateway.admission.level import Level
from gateway.admission.predictor import Predictor
from gateway.admission.spread import spread

HOLDS = 250e-6
"""Seconds, for each request in it, that a forecast holds although some have come or gone: making it anew takes about a
microsecond for each, less where it is compiled, so this bounds what it costs, however busy the endpoint."""
FRESH = 0.25
"""Seconds for which a forecast holds at most: requests go on, and some outlive their predictions."""
REVIEW = 2
"""Predictions are reviewed when the tokens that the first leaves have shrunk to one part in so many: what a request has
lived through says what it will, and the sooner it is asked the fewer it outlives unforeseen."""
PARTS = 4
"""Predictions of each request, where few are in flight."""
MOST = 256
"""Predictions in all, were they as many for each sequence in flight, up to which one that comes has so many."""


class Outlook:
    """Predictions and the forecast of one endpoint.

    Requests in flight are not all predicted at one quantile, which of many would predict that all are long, and end
    together. Each has its own, spread over the range of the `Level`: together they end as so many requests do, some
    early, some late, and what one takes more another takes less. Of few, who happens to be predicted long would decide
    too much: each has several, and counts as their mean.

    The forecast is made anew as requests come and go, in proportion to their number, so that its cost for each
    stays the same. In between, who came since counts with the most it may come to, who left counts on, and so does
    what they shared: it is too low by no more than what those in flight have grown since.
    """

    __slots__ = ("_arrived", "_changed", "_forecast", "_ledger", "_made_at", "_predictor", "_sent", "_shared", "level")

    def __init__(self, ledger: Ledger, predictor: Predictor, share: float) -> None:
        self._ledger = ledger
        self._predictor = predictor
        self.level = Level(share)
        self._forecast = Forecast(Ends(), PARTS)
        self._made_at = 0.0
        self._changed = False
        self._shared = 0
        """Tokens that several held when it was made, once: as long as it holds, somebody may need them."""
        self._sent = 0
        """Requests that came, ever."""
        self._arrived = 0
        """The most tokens that those that came since may come to, as if they shared nothing."""

    def came(self, reservation: Reservation, block_size: int) -> None:
        """A request was sent to the endpoint."""
        self._sent += 1
        reservation.draw = spread(self._sent)
        self._predict(reservation, _parts(self._ledger.sequences))
        # At any step the share of its ends yet to come, times the steps, is at most the mean of the steps to them all.
        remaining = reservation.expected - reservation.generated
        self._arrived += reservation.held * block_size + remaining * reservation.sequences
        self._changed = True

    def left(self) -> None:
        """A request left the endpoint."""
        self._changed = True

    def peak(self, block_size: int, now: float) -> int:
        """Tokens that the endpoint will hold at its fullest. Leaves no trace."""
        forecast, beside = self._current(block_size, now, peek=True)
        return forecast.peak + beside

    def peak_with(self, row: Row, block_size: int, now: float, *, peek: bool = False) -> int:
        """The same with one more request. `peek` leaves no trace."""
        forecast, beside = self._current(block_size, now, peek=peek)
        return forecast.with_request(row) + beside

    def peak_sharing(self, row: Row, other: Reservation, shared: int, block_size: int) -> int:
        """The same with one that is the first to share so many tokens with another. Leaves no trace.

        What they share is not the other's any more, and stays when that one ends: the forecast is made for this alone.
        """
        moved = shared - other.shared
        ends = self._ends(block_size, peek=True, sharer=other, shares=moved)
        return Forecast(ends, PARTS).with_request(row) + self._ledger.shared_tokens + moved

    def _current(self, block_size: int, now: float, *, peek: bool) -> tuple[Forecast, int]:
        """The forecast, and the tokens beside it: those that are shared, and those that have come since."""
        age = now - self._made_at
        if age < FRESH and (not self._changed or age < len(self._ledger) * HOLDS):
            return self._forecast, self._shared + self._arrived
        forecast, shared = Forecast(self._ends(block_size, peek=peek), PARTS), self._ledger.shared_tokens
        if not peek:
            self._forecast, self._shared, self._made_at = forecast, shared, now
            self._changed, self._arrived = False, 0
        return forecast, shared

    def _ends(self, block_size: int, *, peek: bool, sharer: Reservation | None = None, shares: int = 0) -> Ends:
        """Of every request in flight, as it is now, where one of them shares so many tokens more."""
        ends = Ends()
        for reservation in self._ledger:
            generated = reservation.generated
            holds = reservation.held * block_size - reservation.shared
            if reservation is sharer:
                holds -= shares
            lengths = reservation.lengths
            if generated >= reservation.review:
                lengths = self._predict(reservation, len(lengths), peek=peek)
            weight = PARTS // len(lengths)
            for length in lengths:
                remaining = length - generated if length > generated else 0
                ends.add(remaining, holds * weight, reservation.sequences * weight)
        return ends

    def _predict(self, reservation: Reservation, parts: int, *, peek: bool = False) -> list[int]:
        """What a sequence of it may end with, from what it has come to. `peek` leaves no trace."""
        generated, lengths = reservation.generated, []
        for part in range(parts):
            level = self.level.at((part + reservation.draw) / parts, self._ledger.sequences)
            lengths.append(self._predictor.predict(reservation.kind, level, generated, reservation.limit))
        if not peek:
            reservation.lengths = lengths
            reservation.review = lengths[0] - (lengths[0] - generated) // REVIEW
        return lengths


def _parts(sequences: int) -> int:
    """Predictions of a request with so many in flight: a power of two, so that they are parts of `PARTS`."""
    parts = PARTS
    while parts > 1 and parts * sequences > MOST:
        parts //= 2
    return parts
