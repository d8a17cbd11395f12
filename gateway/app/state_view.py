"""The view of the gateway's state: what the owner of the decisions says, and how this process counts."""

from collections.abc import Callable

import gateway
from gateway.app.core import Core
from gateway.config.settings import Settings
from gateway.ops.state import CountingState, GatewayState, NotCountedHere
from gateway.pools.directory import Directory, Pool


class StateView:
    """Reads the state from its owners when asked; implements `gateway.ops.state.StateSource`.

    Args:
        settings: those in force.
        directory: of endpoints and pools.
        owner: of the decisions.

    Attributes:
        draining: whether the gateway is shutting down.
    """

    def __init__(self, settings: Callable[[], Settings], directory: Directory, owner: Core) -> None:
        self._settings = settings
        self._directory = directory
        self._owner = owner
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether it serves, as far as this process knows."""
        seen = self._directory.ever_healthy or self._directory.on_demand
        return seen and self._owner.ready and not self.draining

    async def state(self) -> GatewayState:
        """The gateway now."""
        decided = await self._owner.decided()
        return GatewayState(
            version=gateway.__version__,
            mode=self._settings().admission.mode,
            draining=self.draining,
            ready=self.ready,
            endpoints=decided.endpoints,
            queues=decided.queues,
            counting=tuple(_counting(pool) for pool in self._directory.pools.values()),
            tier=decided.tier,
        )

    async def drain(self, endpoint_id: str) -> None:
        """See `Deciding.drain`."""
        await self._owner.drain(endpoint_id)

    async def undrain(self, endpoint_id: str) -> None:
        """See `Deciding.undrain`."""
        await self._owner.undrain(endpoint_id)

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        """See `Deciding.give`."""
        await self._owner.give(model, adapter, path)


def _counting(pool: Pool) -> CountingState:
    counter = pool.counter
    exceptions = tuple(
        NotCountedHere(api=kind.api, feature=kind.feature, by=kind.source, reason=kind.reason)
        for kind in counter.not_here()
    )
    not_compared, endpoints = counter.not_compared(), pool.endpoints.values()
    return CountingState(
        model=pool.name,
        mode=counter.mode,
        reason=counter.reason,
        not_here=exceptions,
        not_compared=tuple(endpoint.id for endpoint in endpoints if endpoint.base_url in not_compared),
        ids_to=tuple(endpoint.id for endpoint in endpoints if counter.takes_ids(endpoint.base_url)),
    )
