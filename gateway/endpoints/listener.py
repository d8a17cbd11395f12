"""The reports of a monitor: changes for its listener, and the endpoint's status for whoever asks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.admission.events import Capacity, EndpointId, Observed, RequestId
from gateway.endpoints.health import State
from gateway.endpoints.identity import Identity
from gateway.endpoints.totals import Totals


class Listener(Protocol):
    """The receiver of changes. Called on the event loop; must not block."""

    def up(self, endpoint: EndpointId, identity: Identity, capacity: Capacity) -> None:
        """The endpoint takes traffic from now on, or it already does and its identity or capacity changed."""
        ...

    def down(self, endpoint: EndpointId, reason: str) -> None:
        """The endpoint takes no new requests. `reason` begins with its state: "hung: no progress for 31 s ...".

        Called again when it keeps its requests no longer, or the operator drains it or lets it back.
        """
        ...

    def evacuate(self, endpoint: EndpointId) -> None:
        """The endpoint is down or hangs: move its unanswered requests elsewhere."""
        ...

    def expire(self, requests: Collection[RequestId]) -> None:
        """These requests were silent for too long: end them, and do not try them elsewhere."""
        ...

    def observed(self, sample: Observed) -> None:
        """Its metrics were scraped. Called only after it was up once."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """The present knowledge of an endpoint, for people."""

    id: EndpointId
    url: str
    state: State
    reason: str
    since: float
    """On the monitor's clock."""
    healthy: bool
    """Whether it takes traffic now."""
    was_healthy: bool
    """Whether it ever took traffic."""
    identity: Identity | None
    capacity: Capacity | None
    in_flight: int
    missing_metrics: tuple[str, ...]
    scraped_at: float | None
    """Time of the last scrape, on the monitor's clock."""
    totals: Totals
    """The engine's work since kvgate began to watch it."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """How the LoRA adapters are that it is to have, by name; see `Adapters.states`."""
    cause: str | None = None
    """Why its engine, which kvgate launches, ended without being asked to; None once it is ready again."""
    remedy: str | None = None
    """What to do about that."""
