"""The KV cache of a pool that tenants with a share of it hold."""

from collections.abc import Mapping

from gateway.admission.account.ledger import Reservation
from gateway.admission.account.prefixes import SharedPrefixes
from gateway.admission.events import EndpointId, Prefix, RequestId


class _Holding:
    """What one request in flight holds."""

    __slots__ = ("block", "endpoint", "final", "prefix", "reservation", "shared")

    def __init__(self, endpoint: EndpointId, block: int, reservation: Reservation, final: float) -> None:
        self.endpoint = endpoint
        self.block = block
        self.reservation = reservation
        self.final = final
        self.prefix = reservation.prefix
        self.shared = 0

    @property
    def tokens(self) -> float:
        """At its expected end, or now if that is more."""
        return max(self.final, self.reservation.held * self.block)


class _Tenant:
    """A tenant with a share."""

    __slots__ = ("holdings", "prefixes")

    def __init__(self) -> None:
        self.holdings: dict[RequestId, _Holding] = {}
        self.prefixes: dict[EndpointId, SharedPrefixes[_Holding]] = {}


class KvShares:
    """What each tenant with a share holds, over all endpoints.

    A request counts with the tokens expected at its end: else a tenant would be let in until it holds its share, and
    grow from there. What several requests of a tenant have in common on an endpoint counts once. A tenant that holds
    nothing may have one request of any expected length, which would wait for ever otherwise.

    Attributes:
        shares: of the pool's KV cache (0 to 1), by flow. All questions are about flows that have one.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.shares = shares
        self._tenants = {flow: _Tenant() for flow in shares}

    def sent(self, flow: str, endpoint: EndpointId, block: int, reservation: Reservation, final: float) -> None:
        """Add a dispatched request that is expected to hold so many tokens at its end, in blocks of `block`."""
        tenant = self._tenants.get(flow)
        if tenant is None:
            return
        holding = tenant.holdings[reservation.request] = _Holding(endpoint, block, reservation, final)
        if holding.prefix:
            tenant.prefixes.setdefault(endpoint, SharedPrefixes(block)).add(holding)

    def left(self, flow: str, request: RequestId) -> None:
        """Take out such a request when it leaves its endpoint."""
        tenant = self._tenants.get(flow)
        if tenant is None:
            return
        holding = tenant.holdings.pop(request)
        if holding.prefix:
            tenant.prefixes[holding.endpoint].remove(holding)
        if not tenant.holdings:
            tenant.prefixes.clear()

    def held(self, flow: str) -> float:
        """Tokens that a tenant holds."""
        tenant = self._tenants[flow]
        saved = sum(prefixes.saved_tokens for prefixes in tenant.prefixes.values())
        return sum([holding.tokens for holding in tenant.holdings.values()]) - saved

    def over(self, flow: str, tokens: float, room: float) -> float:
        """Tokens by which a tenant would hold more than its share of `room` with so many more; 0 if it holds none."""
        if not self._tenants[flow].holdings:
            return 0.0
        return max(0.0, self.held(flow) + tokens - self.shares[flow] * room)

    def finds(self, flow: str, endpoint: EndpointId, prefix: Prefix) -> int:
        """Tokens of a prompt that a tenant's requests hold already on an endpoint."""
        prefixes = self._tenants[flow].prefixes.get(endpoint)
        return 0 if prefixes is None else prefixes.held(prefix)
