"""The identity of a caller: by a verified key, else a trusted proxy's header, else the peer's address."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network
from types import MappingProxyType

import msgspec

from gateway.relay.headers import bearer
from gateway.server.asgi import Scope, header

_OBJECTIVE = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
"""llm-d's header for the class of a request, and the name it had before."""
_FORMER = {b"x-llm-d-inference-fairness-id": b"x-gateway-inference-fairness-id"}
"""The name that a header had before."""

_APART = tuple(map(IPv6Network, ("::1/128", "fe80::/10", "fc00::/7", "64:ff9b::/96")))
"""IPv6 networks in which each address may be another client: one's own, and that of translated IPv4 (RFC 6052)."""


class UnknownKeyError(Exception):
    """Keys are configured and the client presented none of them."""


class Client(msgspec.Struct, frozen=True):
    """A caller.

    Attributes:
        flow: its name in logs and in the queue.
        band: the most urgent one it may ask for.
        models: names of those it may use; None: all.
        max_tokens: most output tokens of a sequence; None: as many as the model's length leaves.
        keyed: whether it has a key of its own.
        limited: whether its requests are charged to limits, also those that need no admission.
    """

    flow: str
    band: int = 0
    models: frozenset[str] | None = None
    max_tokens: int | None = None
    limited: bool = False
    keyed: bool = False

    def may_use(self, model: str) -> bool:
        """Whether it may use the model of this name."""
        return self.models is None or model in self.models


class Clients:
    """Identifies the client of each request.

    Args:
        keys: clients by key.
        trusted_header: header in which a trusted proxy names the flow. Of llm-d's, the former name is read, too.
        hashed: clients by their key's SHA-256. Without any client in both, everybody is let in.
        objectives: bands of the objectives that a trusted proxy names, by llm-d's header.
    """

    def __init__(
        self,
        keys: Mapping[str, Client],
        trusted_header: str | None,
        hashed: Mapping[bytes, Client] = MappingProxyType({}),
        objectives: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        # Looked up by digest, so that the time a comparison takes says nothing about a key.
        self._by_digest = {_digest(key): client for key, client in keys.items()} | dict(hashed)
        by_urgency = sorted(self._by_digest.values(), key=lambda client: client.band, reverse=True)
        self._by_flow = {client.flow: client for client in by_urgency}
        trusted = trusted_header.lower().encode() if trusted_header is not None else b""
        self._trusted = tuple(name for name in (trusted, _FORMER.get(trusted)) if name)
        self._objectives = {name.encode(): band for name, band in objectives.items()}

    @property
    def authenticates(self) -> bool:
        """Whether clients need a key."""
        return bool(self._by_digest)

    def named(self, flow: str) -> Client:
        """The client of this name. A name without a configured key has the defaults: no limits, and any band."""
        return self._by_flow.get(flow) or Client(network_of(flow))

    def identify(self, scope: Scope) -> Client:
        """The client that sends this request. A key that is not verified identifies nobody.

        Raises:
            UnknownKeyError: keys are configured and the request has none of them.
        """
        if self._by_digest:
            key = bearer(scope)
            client = self._by_digest.get(_digest(key)) if key is not None else None
            if client is None:
                raise UnknownKeyError
            return client
        named = _first(scope, self._trusted) if self._trusted else None
        flow = network_of(named.decode("latin-1")[:128]) if named else peer(scope)
        band = self._objectives.get(_first(scope, _OBJECTIVE) or b"", 0) if self._objectives else 0
        return Client(flow, band)


def _first(scope: Scope, names: Iterable[bytes]) -> bytes | None:
    """The first of these headers that is there and says something."""
    return next((value for name in names if (value := header(scope, name))), None)


def peer(scope: Scope) -> str:
    """The address that a request comes from; of IPv6 the network."""
    address = scope.get("client")
    return network_of(address[0]) if address else "local"


@lru_cache(4096)
def network_of(name: str) -> str:
    """The /64 network of an IPv6 address: one client has all of it (RFC 4291, 2.5.1). Any other name as it is.

    With each of its 2^64 addresses a client would be another flow. Addresses of `_APART` stay as they are, and one that
    stands for an IPv4 address becomes that.
    """
    if ":" not in name:
        return name
    try:
        address = IPv6Address(name.partition("%")[0])
    except ValueError:
        return name
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if any(address in network for network in _APART):
        return name
    return str(IPv6Network((int(address) >> 64 << 64, 64)))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
