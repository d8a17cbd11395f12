"""The outlook of one endpoint: the expected lengths of its requests in flight, and the peak that they lead to."""

from math import inf

from gateway.admission.account.ledger import Ledger, Reservation
from gateway.admission.prediction.forecast import End, Ends, Forecast, Row
from gateway.admission.prediction.predictor import Kind, Predictor
from gateway.admission.prediction.quantile_range import QuantileRange
from gateway.admission.prediction.spread import spread
from gateway.admission.tuning import TUNING


class LengthPrediction:
    """The predicted lengths of one request in flight."""

    __slots__ = ("draw", "kind", "lengths", "review")

    def __init__(self, kind: Kind, draw: float) -> None:
        self.kind = kind
        self.draw = draw
        """Its position within each part of the `QuantileRange`, from 0 (shortest) to 1."""
        self.lengths: list[int] = []
        """Equally likely lengths of one of its sequences, tokens, in ascending order."""
        self.review = 0.0
        """Tokens per sequence at which it is predicted again; infinity if it is predicted to run to its limit."""


class Outlook:
    """Expected lengths and the forecast of one endpoint.

    One quantile for all requests would predict that all are long and end together. So each request gets its own
    quantile, and these spread over the `QuantileRange`: the predicted ends spread as real ends do. With few requests in
    flight, a single long prediction would count too much; so each request gets several predictions and counts with
    their mean.

    A forecast is made for a decision that hangs on it: where the last one has expired, or is outdated and a rule would
    decline by it. The interval between two grows with the number of requests, so the cost per request stays constant.
    Between two forecasts, a new request counts with its maximum, and a request that left still counts, as does what it
    shared. So a forecast is too low by at most the growth since it was made.
    """

    __slots__ = (
        "_arrived",
        "_forecast",
        "_ledger",
        "_made_at",
        "_predictions",
        "_predictor",
        "_requests_changed",
        "_sent",
        "_shared",
        "quantiles",
    )

    def __init__(self, ledger: Ledger, predictor: Predictor, share: float) -> None:
        self._ledger = ledger
        self._predictor = predictor
        self.quantiles = QuantileRange(share)
        self._predictions: dict[Reservation, LengthPrediction] = {}
        """Of each request in the ledger, and of aborted ones that have left it. See `_of_ledger`."""
        self._forecast = Forecast({}, TUNING.predictions)
        self._made_at = 0.0
        self._requests_changed = False
        self._shared = 0
        """Shared tokens when the forecast was made, counted once: while it is valid, a request may need them."""
        self._sent = 0
        """Number of requests ever sent here."""
        self._arrived = 0
        """Most tokens that requests sent since the forecast may hold, as if they shared nothing."""

    def __getitem__(self, reservation: Reservation) -> LengthPrediction:
        return self._predictions[reservation]

    def expected_length(self, reservation: Reservation) -> int:
        """Expected length of one of its sequences, tokens: the mean of its predictions, rounded up."""
        lengths = self._predictions[reservation].lengths
        return -(-sum(lengths) // len(lengths))

    def sent(self, reservation: Reservation, kind: Kind, block_size: int) -> None:
        """Add a request of this kind that was sent to the endpoint."""
        self._sent += 1
        prediction = self._predictions[reservation] = LengthPrediction(kind, spread(self._sent))
        self._predict(reservation, prediction, _parts(self._ledger.sequences))
        # An upper bound: at any step, (share of ends still to come) x (steps) is at most the mean steps to the ends.
        remaining = self.expected_length(reservation) - reservation.generated
        self._arrived += reservation.held * block_size + remaining * reservation.sequences
        self._requests_changed = True

    def left(self, reservation: Reservation, *, aborted: bool) -> None:
        """Note that a request left the endpoint. An aborted one stays in the ledger for a while."""
        if not aborted:
            del self._predictions[reservation]
        self._requests_changed = True

    def expired(self, now: float) -> bool:
        """Whether the forecast is too old to let anybody go."""
        return now - self._made_at >= TUNING.forecast_age

    def outdated(self, now: float) -> bool:
        """Whether the forecast is too old to decline anybody: it has expired, or counts requests that have left."""
        enough = len(self._ledger) * TUNING.forecast_age_per_request if self._requests_changed else TUNING.forecast_age
        return now - self._made_at >= min(enough, TUNING.forecast_age)

    def refresh(self, block_size: int, now: float) -> None:
        """Review the predictions and make a new forecast."""
        for reservation, prediction in self._of_ledger().items():
            if reservation.generated >= prediction.review:
                self._predict(reservation, prediction, len(prediction.lengths))
        self._forecast, self._shared = Forecast(self._ends(block_size), TUNING.predictions), self._ledger.shared_tokens
        self._made_at, self._requests_changed, self._arrived = now, False, 0

    def peak_now(self, block_size: int) -> int:
        """Predicted peak of the endpoint as of now, tokens. Changes nothing."""
        return Forecast(self._ends(block_size), TUNING.predictions).peak + self._ledger.shared_tokens

    @property
    def peak(self) -> int:
        """Predicted peak of the endpoint, tokens."""
        return self._forecast.peak + self._shared + self._arrived

    def peak_with(self, row: Row) -> int:
        """Predicted peak with one more request, tokens."""
        return self._forecast.with_request(row) + self._shared + self._arrived

    def until_end(self, row: Row) -> int | None:
        """Most tokens up to the end of one more request; None if it raises the predicted peak."""
        since = self._shared + self._arrived
        return None if self.peak_with(row) > self.peak else self._forecast.until_end(row) + since

    def peak_sharing(self, row: Row, other: Reservation, shared: int, block_size: int) -> int:
        """Predicted peak with one more request that is the first to share `shared` tokens with another.

        The shared tokens no longer end with the other request. This case needs a forecast of its own.
        """
        moved = shared - other.shared
        ends, most = self._ends(block_size), TUNING.predictions
        lengths = self._predictions[other].lengths
        for length in lengths:
            remaining = max(0, length - other.generated)
            ends[remaining].held -= moved * (most // len(lengths))
        return Forecast(ends, most).with_request(row) + self._ledger.shared_tokens + moved

    def _of_ledger(self) -> dict[Reservation, LengthPrediction]:
        """The predictions of all requests in the ledger, in its order: one loop is cheaper than a look for each."""
        if len(self._predictions) > len(self._ledger):
            self._predictions = {reservation: self._predictions[reservation] for reservation in self._ledger}
        return self._predictions

    def _ends(self, block_size: int) -> Ends:
        """Ends of all requests in flight as of now."""
        ends: Ends = {}
        most = TUNING.predictions
        for reservation, prediction in self._of_ledger().items():
            generated = reservation.generated
            lengths = prediction.lengths
            weight = most // len(lengths)
            holds = (reservation.held * block_size - reservation.shared) * weight
            grows = reservation.sequences * weight
            for length in lengths:
                remaining = length - generated if length > generated else 0
                end = ends.get(remaining)
                if end is None:
                    ends[remaining] = End(holds, grows)
                else:
                    end.held += holds
                    end.sequences += grows
        return ends

    def _predict(self, reservation: Reservation, prediction: LengthPrediction, parts: int) -> None:
        """Predict the lengths of a request from its progress."""
        generated, draw = reservation.generated, prediction.draw
        quantiles = self.quantiles.each([(part + draw) / parts for part in range(parts)], self._ledger.sequences)
        lengths = self._predictor.predict(prediction.kind, quantiles, generated, reservation.limit)
        prediction.lengths = lengths
        shortest = lengths[0]
        remaining = shortest - generated
        prediction.review = shortest - remaining // TUNING.review_divisor if shortest < reservation.limit else inf


def _parts(sequences: int) -> int:
    """Predictions per request with this many sequences in flight: a power of two that divides the most."""
    parts = TUNING.predictions
    while parts > 1 and parts * sequences > TUNING.most_predictions:
        parts //= 2
    return parts
