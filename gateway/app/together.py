"""The owner of the decisions in the same process as its only front."""

from collections.abc import Callable, Mapping

from gateway.admission.events import EndpointId
from gateway.app.named_files import Access
from gateway.app.owner import Owner
from gateway.app.parent import Parent
from gateway.config.engine import Launched
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.metrics import Metrics
from gateway.ops.pictures.digest import Digest
from gateway.pools.admission import Admission, Progressed
from gateway.pools.interface import Follower, Watch


class Together(Owner):
    """An owner called directly: no socket, no copy. See `gateway.app.core.Core`.

    Args:
        settings: those in force.
        endpoints: the configured ones.
        follower: the front.
        clock: monotonic seconds.
        progressed: called with each batch of progress.
        metrics: of this process.
        digest: takes what ended at the front.
        launched: the engines that kvgate launches.
        parent: launches them.

    Raises:
        ConfigurationError: the event log cannot be written.
    """

    def __init__(
        self,
        settings: Settings,
        endpoints: Mapping[EndpointId, Access],
        follower: Follower,
        *,
        clock: Callable[[], float],
        progressed: Progressed,
        metrics: Metrics,
        digest: Callable[[], Digest],
        launched: Launched,
        parent: Parent,
    ) -> None:
        self._progressed = progressed
        self._admissions: dict[str, Admission] = {}
        super().__init__(
            settings,
            endpoints,
            follower,
            clock=clock,
            asker=self._new_admission,
            metrics=metrics,
            launched=launched,
            digest=digest,
            parent=parent,
        )

    async def settled(self) -> None:
        """Wait until each endpoint was probed once."""
        for monitor in self.monitors.values():
            await monitor.probed.wait()

    @property
    def ready(self) -> bool:
        """It decides by itself."""
        return True

    def admission(self, model: str) -> Admission:
        """Admission to the endpoints of a model that is served."""
        admission = self._admissions[model]
        admission.decider = self.cores.drivers[model]
        return admission

    def watch(self, endpoint: EndpointId) -> Watch:
        """The watch over an endpoint."""
        return self.monitors[endpoint]

    def forget(self, endpoint: EndpointId) -> bool:
        """It says of each endpoint when it is gone."""
        del endpoint
        return False

    def tell_awaited(self, ages: Mapping[str, float]) -> None:
        """Say that requests wait here for engines."""
        self.awaited(0, ages)

    def statuses(self) -> list[EndpointStatus]:
        """The present status of each endpoint."""
        return [monitor.status for monitor in self.monitors.values()]

    def leave(self) -> None:
        """Refuse what waits, and take no new requests."""
        self.cores.drain()

    async def stop(self) -> None:
        """Stop everything."""
        for admission in self._admissions.values():
            admission.close()
        await super().stop()

    def _new_admission(self, model: str) -> Admission:
        admission = self._admissions[model] = Admission(self._progressed)
        return admission
