"""What the data plane works with."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Settings
from gateway.ops.metrics import Metrics
from gateway.pools import Directory
from gateway.relay.asgi import Room
from gateway.relay.clients import Clients
from gateway.relay.flights import Flights
from gateway.relay.lobby import Lobby
from gateway.relay.upstream import Upstream
from gateway.tokens.pool import CountingPool


@dataclass(slots=True)
class Plane:
    """Everything a request may need on its way, shared by all requests.

    Attributes:
        settings: those in force, and `clients` by their keys: both are replaced as the operator changes them, so they
            are read here at each use.
        clock: monotonic seconds.
        counting: where what takes long is done to a body.
        arriving: what bodies may hold that are not complete.
    """

    settings: Settings
    clients: Clients
    directory: Directory
    flights: Flights
    upstream: Upstream
    metrics: Metrics
    clock: Callable[[], float]
    lobby: Lobby
    counting: CountingPool
    arriving: Room

    @property
    def observes(self) -> bool:
        """Whether nothing is refused or held back."""
        return self.settings.admission.mode == "observe"

    @property
    def keeps_credentials(self) -> bool:
        """Whether a client's key is meant for the endpoint: kvgate has no keys of its own to tell it by."""
        return not self.clients.authenticates
