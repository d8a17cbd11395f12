"""What the data plane works with."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Settings
from gateway.ops.metrics import Metrics
from gateway.pools import Directory
from gateway.relay.clients import Clients
from gateway.relay.flights import Flights
from gateway.relay.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Plane:
    """Everything a request may need on its way, shared by all requests.

    Attributes:
        clock: monotonic seconds.
        relay_places: the cap on relayed requests, which are not admitted one by one.
    """

    settings: Settings
    clients: Clients
    directory: Directory
    flights: Flights
    upstream: Upstream
    metrics: Metrics
    clock: Callable[[], float]
    relay_places: asyncio.Semaphore

    @property
    def observes(self) -> bool:
        """Whether nothing is refused or held back."""
        return self.settings.admission.mode == "observe"

    @property
    def keeps_credentials(self) -> bool:
        """Whether a client's key is meant for the endpoint: kvgate has no keys of its own to tell it by."""
        return not self.clients.authenticates
