"""The room that flows beyond their share leave free for flows within theirs."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice, takewhile
from math import exp

from gateway.admission.tuning import TUNING


class Holdings:
    """Expected final tokens of a flow's requests in flight: now, and averaged."""

    __slots__ = ("_at", "_average", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._at = 0.0
        self._average = 0.0

    def add(self, tokens: float, at: float) -> None:
        """Add tokens, or take some away."""
        self._average = self.average(at)
        self._at = at
        self.now += tokens

    def average(self, at: float) -> float:
        """Average over the window; 0 at first. The averages of several flows add up to the average of their sum."""
        return self.now + (self._average - self.now) * exp((self._at - at) / TUNING.holdings_window)

    def at_least(self, at: float) -> float:
        """The lower of the two: neither a burst nor past holdings take a flow beyond its share."""
        return min(self.now, self.average(at))


class ActiveFlow:
    """One active flow."""

    __slots__ = ("_before", "_fullest", "_since", "held", "latest", "sent_at", "weight")

    def __init__(self, weight: float, tokens: float, now: float) -> None:
        self.weight = weight
        self.held = Holdings()
        self.latest = tokens
        """Expected final tokens of its latest request: the next will be about as large."""
        self.sent_at = now
        self._since = now
        self._fullest = self._before = 0.0
        """Peak holdings since `_since`; `_before`: in the `active_span` seconds before that."""

    def sent(self, tokens: float, now: float) -> None:
        """Add a request that was dispatched."""
        if now - self._since >= TUNING.active_span:
            self._before = self._fullest if now - self._since < 2 * TUNING.active_span else 0.0
            self._fullest, self._since = 0.0, now
        self.latest = tokens
        self.held.add(tokens, now)
        self._fullest = max(self._fullest, self.held.now)
        self.sent_at = now

    @property
    def room(self) -> float:
        """Tokens it may soon need: the distance to its peak holdings, plus one more request."""
        return max(self._fullest, self._before) - self.held.now + self.latest


class Headroom:
    """Room kept for the next requests of each active flow within its fair share of the tokens in flight.

    Fair queueing decides which request goes next, not when. In a cache that a backlog keeps full, a flow with little
    demand would wait for another request's end each time. So a flow beyond its share leaves room for each flow within
    its share: up to that flow's recent peak, plus one request. A single flow leaves nothing free. No room is kept for a
    flow with more than that waiting: it takes all it can get, and has its turn.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._active: OrderedDict[str, ActiveFlow] = OrderedDict()
        """Flows with a dispatch in the last `active_span`, the latest last."""
        self._holding: dict[str, ActiveFlow] = {}
        """Flows without one that still hold something."""
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

    def sent(self, flow: str, tokens: float, now: float) -> None:
        """Add a dispatched request that will hold this many tokens at its end."""
        known = self._active.pop(flow, None) or self._holding.pop(flow, None)
        if known is None:
            known = ActiveFlow(self._weights.get(flow, 1.0), tokens, now)
            self._weight += known.weight
        self._active[flow] = known
        known.sent(tokens, now)
        self._all.add(tokens, now)
        self._retire(now - TUNING.active_span)

    def left(self, flow: str, tokens: float, now: float) -> None:
        """Take out such a request when it leaves its endpoint."""
        self._all.add(-tokens, now)
        known = self._active.get(flow)
        if known is not None:
            known.held.add(-tokens, now)
            return
        known = self._holding[flow]
        known.held.add(-tokens, now)
        if not known.held.now:
            del self._holding[flow]
            self._weight -= known.weight

    def spare(self, flow: str, waiting: Callable[[str], int], now: float) -> float:
        """Tokens that a request of this flow must leave free; 0 while the flow is within its share.

        `waiting` gives the number of a flow's requests in the queue.
        """
        if len(self._active) + len(self._holding) <= 1:
            return 0.0
        most = TUNING.over_share * self._all.average(now) / self._weight
        known = self._active.get(flow) or self._holding.get(flow)
        if known is None or known.held.at_least(now) <= most * known.weight:
            return 0.0
        latest = islice(reversed(self._active.items()), TUNING.kept_flows)
        active = takewhile(lambda item: item[1].sent_at >= now - TUNING.active_span, latest)
        kept = 0.0
        for name, other in active:
            room = other.room
            if other.held.at_least(now) <= most * other.weight and waiting(name) * other.latest <= room:
                kept += room
        return kept

    def _retire(self, before: float) -> None:
        """Forget the flows whose last dispatch is older, except for what some still hold."""
        while (oldest := next(iter(self._active.values()))).sent_at < before:
            flow, _ = self._active.popitem(last=False)
            if oldest.held.now:
                self._holding[flow] = oldest
            else:
                self._weight -= oldest.weight
