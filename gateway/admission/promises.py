"""What refused requests were told: when to come back, for a turn that is kept for them."""

from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gateway.admission.lane import SLACK
from gateway.admission.outcomes import Outcome
from gateway.admission.request import Request
from gateway.admission.shedding import CAP, FLOOR, Promise

LATE = 2.0
"""Seconds after its moment for which a promise holds: a header tells whole seconds, and a client may be slow."""
LATE_SHARE = 0.25
"""Of the time that was told, where that is more."""
LEAD = 2.0
"""Seconds by which one comes back before its turn, at the most: who comes a moment late leaves no place empty."""
MOST_OF_FLOW = 4096
"""Promises that one flow may have at a time, in all bands, and `MOST` all together."""
MOST = 65536
HORIZON = 120.0
"""Seconds: what is served later is not promised."""
ROUNDING = 1e-3
"""Tokens by which two sums of the same costs may differ."""


class Pressure(NamedTuple):
    """What a request is up against."""

    wait: float
    """Seconds until what waits in its queue, and is not refused itself, has gone."""
    rate: float
    """Tokens of service per second of the pool."""
    weight: float
    """Of all flows that wait in its band."""


class Clock:
    """How far ahead the service of a flow, or of a whole band, is promised."""

    __slots__ = ("free_at", "owed", "promises", "weight")

    def __init__(self, weight: float) -> None:
        self.free_at = 0.0
        """When the next turn is."""
        self.owed = 0.0
        """Tokens of service that are promised and not begun."""
        self.promises: dict[Promise, None] = {}
        """Those that nobody came back for yet, in the order in which they were given."""
        self.weight = weight

    def begin(self, after: float, rate: float, now: float) -> float:
        """The next turn at such a rate, where what goes before takes until then."""
        return max(after, self.free_at, now + self.owed / rate)


class Promises:
    """The turns that are kept for those who were told to come back.

    A promise is a place in a second queue, behind the first: those in it wait at home. Its moment is when what waits
    now and what was promised before has been served, by the order of fairness: no later than its flow's share of what
    drains takes, and no later than everything that was promised. So the moments are as far apart as requests can be
    served, whatever the rate does from one refusal to the next.

    A promise gives no room, only a turn. What nobody comes back for is there for whoever waits.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._by_key: dict[int, list[Promise]] = {}
        self._ends: list[tuple[float, int, Promise]] = []
        self._granted = 0
        self._count = 0
        self._flows: dict[tuple[int, str], Clock] = {}
        self._of_flow: Counter[str] = Counter()
        self._bands: dict[int, Clock] = {}

    def __len__(self) -> int:
        return self._count

    def find(self, key: int, now: float) -> Promise | None:
        """The next one that holds for a request with this key. Leaves no trace."""
        first = None
        for promise in self._by_key.get(key, ()):
            if promise.until >= now and (first is None or promise.due < first.due):
                first = promise
        return first

    def moment(self, request: Request, pressure: Pressure, now: float) -> float | None:
        """When a request that is refused may be told to come back; None where its turn is too far off to promise.

        Leaves no trace.
        """
        start = self._start(request, pressure, now)
        return None if start is None else _due(request, start, now)

    def grant(self, request: Request, outcome: Outcome, pressure: Pressure, now: float) -> float | None:
        """Promise that to a request which is refused so."""
        self.expire(now)
        start = self._start(request, pressure, now)
        if start is None:
            return None
        wait, rate, weight = pressure
        span, arrival, due = request.cost / rate, request.arrival, _due(request, start, now)
        until = due + max(LATE, LATE_SHARE * min(due - now, CAP))
        promise = Promise(arrival, request.order, outcome, due, until)
        mine, band = self._flow(request), self._bands.get(arrival.band)
        if band is None:
            band = self._bands[arrival.band] = Clock(0.0)
        if (arrival.band, arrival.flow) not in self._flows:
            self._flows[arrival.band, arrival.flow] = mine
            band.weight += mine.weight
        if request.promise is None:
            stretch = max(weight, band.weight) / mine.weight
            promise.spans = (span * stretch, span)
            mine.free_at = mine.begin(now + wait, rate / stretch, now) + span * stretch
            band.free_at = band.begin(now + wait, rate, now) + span
        promise.cost = request.cost
        for clock in (mine, band):
            clock.owed += promise.cost
            clock.promises[promise] = None
        self._count += 1
        self._of_flow[arrival.flow] += 1
        self._granted += 1
        self._by_key.setdefault(promise.key, []).append(promise)
        heappush(self._ends, (until, self._granted, promise))
        if len(self._ends) > SLACK + 2 * self._count:
            self._ends = [entry for entry in self._ends if not entry[2].used]
            heapify(self._ends)
        return due

    def use(self, promise: Promise, now: float) -> None:
        """Its request came back. The time of one that was not due yet is there for others."""
        if promise.used:
            return
        promise.used = True
        self._count -= 1
        self._of_flow[promise.flow] -= 1
        if not self._of_flow[promise.flow]:
            del self._of_flow[promise.flow]
        alike = self._by_key[promise.key]
        alike.remove(promise)
        if not alike:
            del self._by_key[promise.key]
        for clock, span in zip(self._clocks(promise), promise.spans, strict=True):
            del clock.promises[promise]
            if promise.due > now:
                clock.free_at -= span

    def end(self, promise: Promise) -> None:
        """What was promised is given, or not asked for any more."""
        if promise.over:
            return
        promise.over = True
        mine, band = self._clocks(promise)
        mine.owed -= promise.cost
        band.owed -= promise.cost
        if mine.owed < ROUNDING and not mine.promises:
            del self._flows[promise.band, promise.flow]
            band.weight -= mine.weight
        if band.owed < ROUNDING and not band.promises:
            del self._bands[promise.band]

    def expire(self, now: float) -> None:
        """Forget those that nobody came back for."""
        while self._ends and (self._ends[0][2].used or self._ends[0][0] < now):
            promise = heappop(self._ends)[2]
            if not promise.used:
                self.use(promise, now)
                self.end(promise)

    def next_in_turn(self, promise: Promise, now: float) -> bool:
        """Whether nobody else of its flow is about to come back for an earlier turn, by a little more or less."""
        for first in self._clocks(promise)[0].promises:
            if first.due >= now - LEAD:
                return first is promise or first.due > now + LEAD
        return True

    def _clocks(self, promise: Promise) -> tuple[Clock, Clock]:
        return self._flows[promise.band, promise.flow], self._bands[promise.band]

    def _start(self, request: Request, pressure: Pressure, now: float) -> float | None:
        """When its turn is, by what is promised; None where it has none within the horizon."""
        if request.promise is not None:  # it had one, and nobody of its flow goes before it
            return now
        if self._of_flow[request.arrival.flow] >= MOST_OF_FLOW or self._count >= MOST:
            return None
        mine = self._flow(request)
        wait, rate, weight = pressure
        after, span = now + wait, request.cost / rate
        for number, clock in self._bands.items():
            if number < request.arrival.band:
                after += max(0.0, clock.free_at - now)
        band = self._bands.get(request.arrival.band)
        if band is None:
            start = after
        else:
            known = (request.arrival.band, request.arrival.flow) in self._flows
            stretch = max(weight, band.weight + (0.0 if known else mine.weight)) / mine.weight
            start = mine.begin(after, rate / stretch, now)
            start = max(start, min(band.begin(after, rate, now), start + span * (stretch - 1)))
        return start if start + span <= now + HORIZON else None

    def _flow(self, request: Request) -> Clock:
        """The clock of its flow in its band, or a new one."""
        arrival = request.arrival
        clock = self._flows.get((arrival.band, arrival.flow))
        return Clock(self._weights.get(arrival.flow, 1.0)) if clock is None else clock


def _due(request: Request, start: float, now: float) -> float:
    """When one whose turn is then comes back."""
    return max(now + FLOOR, start - min(LEAD, request.patience / 2))
