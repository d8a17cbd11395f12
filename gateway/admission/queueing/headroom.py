"""The room that flows beyond their share leave free for flows within theirs."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from math import exp, inf

from gateway.admission.tuning import TUNING

MOST_ACTIVE = 4096
"""Most active flows that are known: those that asked last."""


class Holdings:
    """What a flow's requests in flight hold: now, and averaged."""

    __slots__ = ("_at", "_average", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._at = 0.0
        self._average = 0.0

    def add(self, amount: float, at: float) -> None:
        """Add an amount, or take some away."""
        self._average = self.average(at)
        self._at = at
        self.now += amount

    def average(self, at: float) -> float:
        """Average over the window; 0 at first. The averages of several flows add up to the average of their sum."""
        return self.now + (self._average - self.now) * exp((self._at - at) / TUNING.holdings_window)

    def at_least(self, at: float, more: float = 0.0) -> float:
        """The lower of the two, with so much more: neither a burst nor past holdings take a flow beyond its share."""
        return min(self.now + more, self.average(at))


class ActiveFlow:
    """One active flow."""

    __slots__ = ("_before", "_fullest", "_since", "asked_at", "band", "held", "latest", "refused_at", "weight")

    def __init__(self, weight: float, now: float) -> None:
        self.weight = weight
        self.held = Holdings()
        self.band = 0
        """Band of its latest request."""
        self.latest = 0.0
        """What its latest request needs: the next will be about as large."""
        self.asked_at = now
        """When it asked for something, at last."""
        self.refused_at = -inf
        """When a request of it was refused for want of room, at last."""
        self._since = now
        self._fullest = self._before = 0.0
        """Peak holdings since `_since`; `_before`: in the `active_span` seconds before that."""

    def asked(self, band: int, amount: float, now: float) -> None:
        """Note a request."""
        if now - self._since >= TUNING.active_span:
            self._before = self._fullest if now - self._since < 2 * TUNING.active_span else 0.0
            self._fullest, self._since = self.held.now, now
        self.band, self.latest, self.asked_at = band, amount, now

    def sent(self, amount: float, now: float) -> None:
        """Add it as it is dispatched."""
        self.held.add(amount, now)
        self._fullest = max(self._fullest, self.held.now)

    @property
    def room(self) -> float:
        """What it may soon need: the distance to its peak holdings, plus one more request."""
        return max(self._fullest, self._before) - self.held.now + self.latest


class Headroom:
    """Room kept for the next requests of each active flow within its fair share of what is in flight.

    Amounts are tokens, expected at a request's end, or sequences: a pool has a headroom of each.

    Fair queueing decides which request goes next, not when. On an engine that a backlog keeps full, a flow with little
    demand would wait for another request's end each time. So a flow beyond its share leaves room for each flow within
    its share: up to that flow's recent peak, plus one request. A single flow leaves nothing free. No room is kept for a
    flow with more than that waiting: it takes all it can get, and has its turn. Nor for a less urgent one.
    """

    def __init__(self, weights: Mapping[str, float], least: float = 0.0) -> None:
        """Begin without flows. `least`: what each flow may hold however many there are."""
        self._weights = weights
        self._least = least
        self._active: OrderedDict[str, ActiveFlow] = OrderedDict()
        """Flows that asked for something in the last `active_span`, the latest last."""
        self._holding: dict[str, ActiveFlow] = {}
        """Others that still hold something."""
        self._all = Holdings()
        self._weight = 0.0

    def govern(self, weights: Mapping[str, float]) -> None:
        """Apply other weights."""
        self._weights = weights
        self._weight = 0.0
        for flows in (self._active, self._holding):
            for flow, known in flows.items():
                known.weight = weights.get(flow, 1.0)
                self._weight += known.weight

    def asked(self, flow: str, band: int, amount: float, now: float) -> ActiveFlow:
        """Note a request that needs this much: a flow that gets nothing is active, too."""
        known = self._active.pop(flow, None) or self._holding.pop(flow, None)
        if known is None:
            known = ActiveFlow(self._weights.get(flow, 1.0), now)
            self._weight += known.weight
        known.asked(band, amount, now)
        self._active[flow] = known
        self._retire(now - TUNING.active_span)
        return known

    def sent(self, flow: str, band: int, amount: float, now: float) -> None:
        """Add a dispatched request that will hold this much."""
        self.asked(flow, band, amount, now).sent(amount, now)
        self._all.add(amount, now)

    def left(self, flow: str, amount: float, now: float) -> None:
        """Take out such a request when it leaves its endpoint."""
        self._all.add(-amount, now)
        known = self._active.get(flow)
        if known is not None:
            known.held.add(-amount, now)
            return
        known = self._holding[flow]
        known.held.add(-amount, now)
        if not known.held.now:
            del self._holding[flow]
            self._weight -= known.weight

    def refused(self, flow: str, now: float) -> None:
        """Note that a request that asked was refused for want of room."""
        known = self._active.get(flow)
        if known is not None:
            known.refused_at = now

    def starves(self, flow: str, band: int, now: float) -> bool:
        """Whether another flow within its share was refused lately."""
        since = now - TUNING.refused_span
        return any(other.refused_at >= since for name, other in self._within(band, now) if name != flow)

    def kept(self, waiting: Callable[[str], int], now: float) -> "Kept":
        """What is kept as of now. `waiting` gives the number of a flow's requests in the queue."""
        return Kept(self, waiting, now)

    def beyond_share(self, flow: str, amount: float, now: float) -> bool:
        """Whether a flow is beyond its share with so much more, beside others."""
        if len(self._active) + len(self._holding) <= 1:
            return False
        known = self._active.get(flow) or self._holding.get(flow)
        return known is not None and known.held.at_least(now, amount) > max(self._least, self._part(now) * known.weight)

    def rooms(self, band: int, waiting: Callable[[str], int], now: float) -> dict[str, float]:
        """The room kept for each flow within its share, from flows of this band."""
        return {
            flow: known.room for flow, known in self._within(band, now) if waiting(flow) * known.latest <= known.room
        }

    def _within(self, band: int, now: float) -> Iterator[tuple[str, ActiveFlow]]:
        """The active flows within their share, those that asked last, of this band and more urgent ones."""
        part, latest = self._part(now), islice(reversed(self._active.items()), TUNING.kept_flows)
        for name, other in takewhile(lambda item: item[1].asked_at >= now - TUNING.active_span, latest):
            if other.band <= band and other.held.at_least(now) <= max(self._least, part * other.weight):
                yield name, other

    def _part(self, now: float) -> float:
        """Most that a flow of weight 1 holds within its share, apart from `least`."""
        return TUNING.over_share * self._all.average(now) / self._weight

    def _retire(self, before: float) -> None:
        """Forget the flows that last asked before, and the first of too many, except for what some still hold."""
        while (oldest := next(iter(self._active.values()))).asked_at < before or len(self._active) > MOST_ACTIVE:
            flow, _ = self._active.popitem(last=False)
            if oldest.held.now:
                self._holding[flow] = oldest
            else:
                self._weight -= oldest.weight


class Kept:
    """What a headroom keeps at one time, worked out once per band.

    Valid until a request is sent to an endpoint or leaves one, or the queue changes.
    """

    __slots__ = ("_headroom", "_now", "_rooms", "_waiting")

    def __init__(self, headroom: Headroom, waiting: Callable[[str], int], now: float) -> None:
        self._headroom = headroom
        self._waiting = waiting
        self._now = now
        self._rooms: dict[int, tuple[dict[str, float], float]] = {}
        """By band: the room kept for each flow, and for all."""

    def spare(self, flow: str, band: int, amount: float) -> float:
        """Amount that a request of this flow must leave free; 0 if the flow is within its share with it."""
        if not self._headroom.beyond_share(flow, amount, self._now):
            return 0.0
        found = self._rooms.get(band)
        if found is None:
            rooms = self._headroom.rooms(band, self._waiting, self._now)
            found = self._rooms[band] = rooms, sum(rooms.values())
        rooms, of_all = found
        return of_all if flow not in rooms else sum([room for name, room in rooms.items() if name != flow])
