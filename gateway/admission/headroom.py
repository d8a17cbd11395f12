"""Room that flows beyond their share leave free for those within theirs."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice, takewhile
from math import exp

ACTIVE = 30.0
"""Seconds after its last dispatch for which a flow counts as active, and over which its fullest moment is known."""
LOOK = 16
"""Active flows that room is kept for, those heard of last: the others find what these leave."""
WEIGHT = 0.1
"""What one request adds to the mean of its flow."""
AVERAGED = 10.0
"""Seconds over which it is averaged what a flow holds: a burst does not take it beyond its share."""
BEYOND = 1.1
"""How many times its share a flow holds that is beyond it. Flows that ask for the same are not, now one and now the
other."""


class Held:
    """Tokens that requests in flight will hold at their ends: now, and on average."""

    __slots__ = ("_at", "_average", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._at = 0.0
        self._average = 0.0

    def add(self, tokens: float, at: float) -> None:
        """So many more from now on, or fewer."""
        self._average = self.average(at)
        self._at = at
        self.now += tokens

    def average(self, at: float) -> float:
        """Over the last while; nothing before the first. Averages of parts add up to that of the whole."""
        return self.now + (self._average - self.now) * exp((self._at - at) / AVERAGED)

    def at_least(self, at: float) -> float:
        """The less of the two: neither a burst nor what it held before takes a flow beyond its share."""
        return min(self.now, self.average(at))


class Tenant:
    """One active flow."""

    __slots__ = ("_before", "_fullest", "_since", "held", "mean", "sent_at", "weight")

    def __init__(self, weight: float, tokens: float, now: float) -> None:
        self.weight = weight
        self.held = Held()
        self.mean = tokens
        """What one of its requests holds at its end."""
        self.sent_at = now
        self._since = now
        self._fullest = self._before = 0.0
        """The most it held since then, and in the `ACTIVE` seconds before."""

    def sent(self, tokens: float, now: float) -> None:
        """One of its requests went."""
        if now - self._since >= ACTIVE:
            self._before = self._fullest if now - self._since < 2 * ACTIVE else 0.0
            self._fullest, self._since = 0.0, now
        self.mean += (tokens - self.mean) * WEIGHT
        self.held.add(tokens, now)
        self._fullest = max(self._fullest, self.held.now)
        self.sent_at = now

    @property
    def room(self) -> float:
        """Tokens it may soon ask for: what it lacks to its fullest moment, and one request more."""
        return max(self._fullest, self._before) - self.held.now + self.mean


class Headroom:
    """Keeps room for the next requests of every active flow that is within its fair share of what is in flight.

    Fair queueing decides who goes next, not when: in a cache that a backlog keeps full, a flow that asks for little
    would wait for somebody's end each time. So whoever is beyond its share leaves as much free as the others have
    taken at their fullest, and one request of each. A single flow leaves nothing, and nothing is kept for one with
    more than that waiting: it asks for all it can get, and has its turn.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        """The one heard of last is the last."""
        self._all = Held()
        self._weight = 0.0

    def govern(self, weights: Mapping[str, float]) -> None:
        """Go by other weights from now on."""
        self._weights = weights
        for flow, tenant in self._tenants.items():
            tenant.weight = weights.get(flow, 1.0)
        self._weight = sum([tenant.weight for tenant in self._tenants.values()], 0.0)

    def sent(self, flow: str, tokens: float, now: float) -> None:
        """A request went that will hold so many tokens at its end."""
        tenant = self._tenants.get(flow)
        if tenant is None:
            tenant = self._tenants[flow] = Tenant(self._weights.get(flow, 1.0), tokens, now)
            self._weight += tenant.weight
        else:
            self._tenants.move_to_end(flow)
        tenant.sent(tokens, now)
        self._all.add(tokens, now)
        oldest = next(iter(self._tenants.values()))
        if oldest.sent_at < now - ACTIVE and not oldest.held.now:
            _, gone = self._tenants.popitem(last=False)
            self._weight -= gone.weight

    def left(self, flow: str, tokens: float, now: float) -> None:
        """That request left its endpoint."""
        self._tenants[flow].held.add(-tokens, now)
        self._all.add(-tokens, now)

    def spare(self, flow: str, waiting: Callable[[str], int], now: float) -> float:
        """Tokens that a request of this flow must leave free; 0 while the flow is within its share.

        `waiting` says how many of a flow wait in the queue.
        """
        if len(self._tenants) <= 1:
            return 0.0
        most = BEYOND * self._all.average(now) / self._weight
        tenant = self._tenants.get(flow)
        if tenant is None or tenant.held.at_least(now) <= most * tenant.weight:
            return 0.0
        latest = islice(reversed(self._tenants.items()), LOOK)
        active = takewhile(lambda item: item[1].sent_at >= now - ACTIVE, latest)
        kept = 0.0
        for name, other in active:
            room = other.room
            if other.held.at_least(now) <= most * other.weight and waiting(name) * other.mean <= room:
                kept += room
        return kept
