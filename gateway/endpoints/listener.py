"""What a monitor tells: changes to its listener, and its view of the endpoint to whoever asks."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from gateway.admission.events import Capacity, EndpointId, Observed, RequestId
from gateway.endpoints.health import State
from gateway.endpoints.identity import Identity
from gateway.endpoints.totals import Totals


class Listener(Protocol):
    """Who is told. Called on the event loop; must not block."""

    def up(self, endpoint: EndpointId, identity: Identity, capacity: Capacity) -> None:
        """The endpoint takes traffic from now on; or it does already, and its identity or capacity changed."""
        ...

    def down(self, endpoint: EndpointId, reason: str) -> None:
        """The endpoint takes no new requests. Begins with its state: "hung: no progress for 31 s ..."."""
        ...

    def evacuate(self, endpoint: EndpointId) -> None:
        """What the endpoint has not answered goes elsewhere: it is down or hangs."""
        ...

    def expire(self, requests: Collection[RequestId]) -> None:
        """These requests were silent for longer than they may be; they end, and go nowhere else."""
        ...

    def observed(self, sample: Observed) -> None:
        """Its metrics were scraped; only after it was up once."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """What is known of an endpoint now, for people."""

    id: EndpointId
    url: str
    state: State
    reason: str
    since: float
    """On the monitor's clock."""
    healthy: bool
    """Whether it takes traffic now."""
    was_healthy: bool
    """Whether it ever did."""
    identity: Identity | None
    capacity: Capacity | None
    in_flight: int
    missing_metrics: tuple[str, ...]
    scraped_at: float | None
    """Of the last scrape, on the monitor's clock."""
    totals: Totals
    """What the engine has done since it is watched."""
