"""The promises to refused requests: when to come back, for a turn that is kept for them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import NamedTuple

from gateway.admission.events import Promised
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.promise import Promise
from gateway.admission.placing.request import RequestRecord
from gateway.admission.queueing.jitter import CAP, FLOOR
from gateway.admission.queueing.lane import SLACK
from gateway.admission.tuning import TUNING

MOST_OF_FLOW = 4096
"""Most open promises of one flow in all bands; `MOST`: of all flows."""
MOST = 65536
ROUNDING = 1e-3
"""Most difference between two sums of the same costs, tokens."""


class Pressure(NamedTuple):
    """The load ahead of a refused request."""

    wait: float
    """Seconds until the requests ahead of it in the queue have gone, without those that will be refused."""
    rate: float
    """Drain rate of the pool, tokens of service per second."""
    weight: float
    """Weight of all flows that wait in its band."""


class Schedule:
    """The promised service of one flow or of one band."""

    __slots__ = ("free_at", "owed", "promises", "weight")

    def __init__(self, weight: float) -> None:
        self.free_at = 0.0
        """Time of the next turn."""
        self.owed = 0.0
        """Tokens of service promised and not begun."""
        self.promises: dict[Promise, None] = {}
        """Open promises, in the order in which they were granted."""
        self.weight = weight

    def begin(self, after: float, rate: float, now: float) -> float:
        """Time of the next turn at this rate, if the requests ahead take until `after`."""
        return max(after, self.free_at, now + self.owed / rate)


class Promises:
    """The turns kept for requests that were told to come back.

    A promise is a place in a second queue, whose requests wait at their clients. Its turn comes when everything that
    waits now and was promised earlier has been served, in the order of fairness: no later than its flow's share of the
    drain rate allows, and no later than all promises together take. So turns are as far apart as requests can be
    served, even if the rate changes from one refusal to the next.

    A promise reserves a turn, not room. A turn that no request comes back for goes to those that wait.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._by_fingerprint: dict[int, list[Promise]] = {}
        self._ends: list[tuple[float, int, Promise]] = []
        self._granted = 0
        self._count = 0
        self._flows: dict[tuple[int, str], Schedule] = {}
        self._of_flow: Counter[str] = Counter()
        self._bands: dict[int, Schedule] = {}

    def govern(self, weights: Mapping[str, float]) -> None:
        """Apply other weights. The moments told stay."""
        self._weights = weights
        for band in self._bands.values():
            band.weight = 0.0
        for (number, flow), schedule in self._flows.items():
            schedule.weight = weights.get(flow, 1.0)
            self._bands[number].weight += schedule.weight

    def __len__(self) -> int:
        return self._count

    def find(self, fingerprint: int, now: float) -> Promise | None:
        """The earliest valid promise to a request with this fingerprint. Changes nothing."""
        first = None
        for promise in self._by_fingerprint.get(fingerprint, ()):
            if promise.until >= now and (first is None or promise.due < first.due):
                first = promise
        return first

    def moment(self, request: RequestRecord, pressure: Pressure, now: float) -> float | None:
        """Time at which a refused request should come back; None if its turn is too far off to promise.

        Changes nothing.
        """
        start = self._start(request, pressure, now)
        return None if start is None else _due(request, start, now)

    def grant(self, request: RequestRecord, outcome: Outcome, pressure: Pressure, now: float) -> float | None:
        """Promise a turn to a request refused with this outcome; returns the time that `moment` would."""
        self.expire(now)
        start = self._start(request, pressure, now)
        if start is None:
            return None
        wait, rate, weight = pressure
        span, arrival, due = request.cost / rate, request.arrival, _due(request, start, now)
        until = due + max(TUNING.promise_late, TUNING.promise_late_share * min(due - now, CAP))
        promise = Promise(
            arrival.key,
            arrival.band,
            arrival.flow,
            order=request.order,
            outcome=outcome,
            due=due,
            until=until,
            cost=request.cost,
        )
        mine, band = self._enter(promise)
        if request.promise is None:
            stretch = max(weight, band.weight) / mine.weight
            promise.spans = (span * stretch, span)
            mine.free_at = mine.begin(now + wait, rate / stretch, now) + span * stretch
            band.free_at = band.begin(now + wait, rate, now) + span
        for schedule in (mine, band):
            schedule.owed += promise.cost
        return due

    def open(self, before: int, now: float) -> Iterator[Promised]:
        """The open promises, those granted first at first. Requests that wait have orders up to `before`."""
        for promise in chain.from_iterable(self._by_fingerprint.values()):
            yield Promised(
                promise.fingerprint,
                promise.band,
                promise.flow,
                promise.order - before - 1,
                promise.outcome,
                promise.due - now,
                promise.until - now,
                promise.cost,
                promise.spans,
            )

    def recall(self, promised: Promised, now: float) -> None:
        """Keep a promise that another core gave."""
        promise = Promise(
            promised.key,
            promised.band,
            promised.flow,
            order=promised.order,
            outcome=promised.outcome,
            due=promised.due + now,
            until=promised.until + now,
            cost=promised.cost,
        )
        promise.spans = promised.spans
        for schedule, span in zip(self._enter(promise), promise.spans, strict=True):
            schedule.free_at = max(schedule.free_at, promise.due + span)
            schedule.owed += promise.cost

    def use(self, promise: Promise, now: float) -> None:
        """Note that its request came back. If it was not due yet, its time is free for others."""
        if promise.used:
            return
        promise.used = True
        self._count -= 1
        self._of_flow[promise.flow] -= 1
        if not self._of_flow[promise.flow]:
            del self._of_flow[promise.flow]
        alike = self._by_fingerprint[promise.fingerprint]
        alike.remove(promise)
        if not alike:
            del self._by_fingerprint[promise.fingerprint]
        for schedule, span in zip(self._schedules(promise), promise.spans, strict=True):
            del schedule.promises[promise]
            if promise.due > now:
                schedule.free_at -= span

    def end(self, promise: Promise) -> None:
        """Settle a promise: its turn was given, or is no longer wanted."""
        if promise.ended:
            return
        promise.ended = True
        mine, band = self._schedules(promise)
        mine.owed -= promise.cost
        band.owed -= promise.cost
        if mine.owed < ROUNDING and not mine.promises:
            del self._flows[promise.band, promise.flow]
            band.weight -= mine.weight
        if band.owed < ROUNDING and not band.promises:
            del self._bands[promise.band]

    def expire(self, now: float) -> None:
        """Drop promises that no request came back for in time."""
        while self._ends and (self._ends[0][2].used or self._ends[0][0] < now):
            promise = heappop(self._ends)[2]
            if not promise.used:
                self.use(promise, now)
                self.end(promise)

    def next_in_turn(self, promise: Promise, now: float) -> bool:
        """Whether no other request of its flow is about to come back for an earlier turn, within `promise_lead`."""
        for first in self._schedules(promise)[0].promises:
            if first.due >= now - TUNING.promise_lead:
                return first is promise or first.due > now + TUNING.promise_lead
        return True

    def _enter(self, promise: Promise) -> tuple[Schedule, Schedule]:
        """Enter a promise, and return the schedules of its flow and of its band."""
        key = promise.band, promise.flow
        mine, band = self._flows.get(key), self._bands.get(promise.band)
        if band is None:
            band = self._bands[promise.band] = Schedule(0.0)
        if mine is None:
            mine = self._flows[key] = Schedule(self._weights.get(promise.flow, 1.0))
            band.weight += mine.weight
        for schedule in (mine, band):
            schedule.promises[promise] = None
        self._count += 1
        self._of_flow[promise.flow] += 1
        self._granted += 1
        self._by_fingerprint.setdefault(promise.fingerprint, []).append(promise)
        heappush(self._ends, (promise.until, self._granted, promise))
        if len(self._ends) > SLACK + 2 * self._count:
            self._ends = [entry for entry in self._ends if not entry[2].used]
            heapify(self._ends)
        return mine, band

    def _schedules(self, promise: Promise) -> tuple[Schedule, Schedule]:
        return self._flows[promise.band, promise.flow], self._bands[promise.band]

    def _start(self, request: RequestRecord, pressure: Pressure, now: float) -> float | None:
        """Time of its turn, after all promises so far; None if that is beyond the horizon."""
        if request.promise is not None:  # it had a promise, so it is next of its flow
            return now
        if self._of_flow[request.arrival.flow] >= MOST_OF_FLOW or self._count >= MOST:
            return None
        mine = self._schedule_of(request)
        wait, rate, weight = pressure
        after, span = now + wait, request.cost / rate
        for number, schedule in self._bands.items():
            if number < request.arrival.band:
                after += max(0.0, schedule.free_at - now)
        band = self._bands.get(request.arrival.band)
        if band is None:
            start = after
        else:
            known = (request.arrival.band, request.arrival.flow) in self._flows
            stretch = max(weight, band.weight + (0.0 if known else mine.weight)) / mine.weight
            start = mine.begin(after, rate / stretch, now)
            start = max(start, min(band.begin(after, rate, now), start + span * (stretch - 1)))
        return start if start + span <= now + TUNING.promise_horizon else None

    def _schedule_of(self, request: RequestRecord) -> Schedule:
        """The schedule of its flow in its band, or a new one."""
        arrival = request.arrival
        schedule = self._flows.get((arrival.band, arrival.flow))
        return Schedule(self._weights.get(arrival.flow, 1.0)) if schedule is None else schedule


def _due(request: RequestRecord, start: float, now: float) -> float:
    """Time at which a request with its turn at `start` should come back."""
    return max(now + FLOOR, start - min(TUNING.promise_lead, request.queue_budget / 2))
