"""Room that flows beyond their share leave free for those within theirs."""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice, takewhile

ACTIVE = 30.0
"""Seconds after its last dispatch for which a flow counts as active."""
LOOK = 16
"""Active flows that room is kept for, those heard of last: the others find what these leave."""
WEIGHT = 0.1
"""What one request adds to the mean of its flow."""


class Tenant:
    """One active flow."""

    __slots__ = ("held", "mean", "sent_at", "weight")

    def __init__(self, weight: float, tokens: float) -> None:
        self.weight = weight
        self.held = 0.0
        """Tokens that its requests in flight will hold at their ends."""
        self.mean = tokens
        """The same of one request."""
        self.sent_at = 0.0


class Headroom:
    """Keeps room for the next request of every active flow that is within its fair share of what is in flight.

    Fair queueing decides who goes next, not when: in a cache that a backlog keeps full, a flow that asks for little
    would wait for somebody's end each time. So whoever is beyond its share leaves as much free as one request of each
    of the others takes. A single flow leaves nothing.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        """The one heard of last is the last."""
        self._held = 0.0
        self._weight = 0.0

    def sent(self, flow: str, tokens: float, now: float) -> None:
        """A request went that will hold so many tokens at its end."""
        tenant = self._tenants.get(flow)
        if tenant is None:
            tenant = self._tenants[flow] = Tenant(self._weights.get(flow, 1.0), tokens)
            self._weight += tenant.weight
        else:
            self._tenants.move_to_end(flow)
        tenant.mean += (tokens - tenant.mean) * WEIGHT
        tenant.held += tokens
        tenant.sent_at = now
        self._held += tokens
        oldest = next(iter(self._tenants.values()))
        if oldest.sent_at < now - ACTIVE and not oldest.held:
            _, gone = self._tenants.popitem(last=False)
            self._weight -= gone.weight

    def left(self, flow: str, tokens: float) -> None:
        """That request left its endpoint."""
        tenant = self._tenants[flow]
        tenant.held -= tokens
        self._held -= tokens

    def spare(self, flow: str, now: float) -> float:
        """Tokens that a request of this flow must leave free; 0 while the flow is within its share."""
        if len(self._tenants) <= 1:
            return 0.0
        share = self._held / self._weight
        tenant = self._tenants.get(flow)
        if tenant is None or tenant.held < share * tenant.weight:
            return 0.0
        latest = islice(reversed(self._tenants.values()), LOOK)
        active = takewhile(lambda other: other.sent_at >= now - ACTIVE, latest)
        return sum(other.mean for other in active if other is not tenant and other.held < share * other.weight)
