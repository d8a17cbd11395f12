"""The parts of the data plane that all requests share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.admission.events import RequestId
from gateway.config.settings import Settings
from gateway.ops.metrics import Metrics
from gateway.pools.directory import Directory
from gateway.relay.asgi import Room
from gateway.relay.clients import Clients
from gateway.relay.flights import Flights
from gateway.relay.lobby import Lobby
from gateway.relay.upstream import Upstream
from gateway.tokens.pool import CountingPool


@dataclass(slots=True)
class Plane:
    """Everything a request may need on its way.

    Attributes:
        settings: those in force. Like `clients`, they are replaced when the operator changes them: read them here at
            each use.
        clock: monotonic seconds.
        counting: does the slow work on bodies, off the event loop.
        bodies: memory that request bodies may hold until their answers begin.
        key: of the hashes of bodies and of prefixes.
        ids: of requests; those of two fronts never meet.
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
    bodies: Room
    key: bytes
    ids: Iterator[int]

    def new_request(self) -> RequestId:
        """An id that no request had before."""
        return RequestId(next(self.ids))

    @property
    def observes(self) -> bool:
        """Whether observe mode is on: nothing is refused or held back."""
        return self.settings.admission.mode == "observe"

    @property
    def keeps_credentials(self) -> bool:
        """Whether a client's key is meant for the endpoint, because kvgate itself has no keys."""
        return not self.clients.authenticates
