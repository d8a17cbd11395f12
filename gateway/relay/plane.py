"""The parts of the data plane that all requests share."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.admission.events import RequestId
from gateway.config.fallback import FallbackSettings
from gateway.config.settings import Settings
from gateway.ops.metrics import Metrics
from gateway.pools.awaited import Awaited
from gateway.pools.directory import Directory, Endpoint
from gateway.relay.client_identity import Clients
from gateway.relay.flights import Flights
from gateway.relay.lobby import Lobby
from gateway.relay.payload import Room
from gateway.runtime.turnstile import Turnstile
from gateway.tokens.pool import CountingPool
from gateway.upstream.interface import Upstream


@dataclass(slots=True)
class Plane:
    """Everything a request may need on its way.

    Attributes:
        settings: those in force. Like `clients` and `elsewhere`, they are replaced when the operator changes them: read
            them here at each use.
        awaited: says for which models requests wait for an engine to start.
        elsewhere: the servers elsewhere that are fallbacks.
        clock: monotonic seconds.
        counting: does the slow work on bodies, off the event loop.
        bodies: memory that request bodies may hold until their answers begin.
        hash_key: of the hashes of bodies and of prefixes.
        ids: of requests; those of two fronts never meet.
        turnstile: passed by what hundreds may do at once: be sent again or fail as an engine dies, leave, go on as an
            endpoint comes up.
    """

    settings: Settings
    clients: Clients
    directory: Directory
    flights: Flights
    upstream: Upstream
    metrics: Metrics
    clock: Callable[[], float]
    lobby: Lobby
    awaited: Awaited
    counting: CountingPool
    bodies: Room
    hash_key: bytes
    ids: Iterator[int]
    elsewhere: Mapping[FallbackSettings, Endpoint] = field(default_factory=dict)
    turnstile: Turnstile = field(default_factory=Turnstile)

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
