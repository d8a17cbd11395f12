"""The time at which a refused request should come back, and the turn that is kept for it until then."""

from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.placing.request import RequestRecord
from gateway.admission.queueing.jitter import CAP, FLOOR, Jitter
from gateway.admission.queueing.promises import Pressure, Promises
from gateway.admission.queueing.queue import Queue
from gateway.admission.queueing.waits import Waits


class RetryAfter:
    """Retry-After times of the requests refused by one pool, seconds."""

    def __init__(self, waits: Waits, queue: Queue, promises: Promises) -> None:
        self._waits = waits
        self._queue = queue
        self._promises = promises
        self._jitter = Jitter()

    def grant(self, request: RequestRecord, outcome: Outcome, now: float) -> float:
        """Retry-After of a request refused with this outcome. If possible, its turn is kept until then."""
        promise = request.promise
        if promise is not None and not promise.used:  # it came back too early and is told the same time
            return _within(promise.due - now)
        pressure = self._pressure(request, outcome, now)
        if pressure is None:
            return self._jitter.after(self.until_turn(request, outcome, now))
        due = self._promises.grant(request, outcome, pressure, now)
        return CAP if due is None else _within(due - now)

    def preview(self, request: RequestRecord, outcome: Outcome, now: float) -> float | None:
        """Unjittered Retry-After of a request that is only asked about; None if unknown. Changes nothing."""
        promise = request.promise
        if promise is not None and promise.due > now:
            return _within(promise.due - now)
        pressure = self._pressure(request, outcome, now)
        if pressure is None:
            return self.until_turn(request, outcome, now)
        due = self._promises.moment(request, pressure, now)
        return CAP if due is None else _within(due - now)

    def _pressure(self, request: RequestRecord, outcome: Outcome, now: float) -> Pressure | None:
        """Load ahead of a refused request; None if no turn can be kept for it.

        Its wait is capped at its queue budget, as requests further back will be refused, too.
        """
        rate = self._waits.rate(now) if outcome in FOR_WANT_OF_ROOM and request.arrival.key else None
        if not rate:
            return None
        wait = self._waits.predicted(request, now) or 0.0
        return Pressure(min(wait, request.queue_budget), rate, self._queue.weight(request.arrival.band))

    def until_turn(self, request: RequestRecord, outcome: Outcome, now: float) -> float | None:
        """Seconds until its turn, or until its first token would come in time; None if unknown."""
        if outcome is Outcome.NO_ENDPOINT and self._waits.ready_at is not None:
            return abs(self._waits.ready_at - now)  # one that is late is expected to be as late again
        if outcome in {Outcome.DRAINING, Outcome.NO_ENDPOINT}:
            return None
        wait = self._waits.predicted(request, now)
        return wait - request.queue_budget if wait is not None and outcome is Outcome.WAIT_TOO_LONG else wait


def _within(seconds: float) -> float:
    return min(max(seconds, FLOOR), CAP)
