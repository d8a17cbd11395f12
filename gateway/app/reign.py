"""The decisions, for as long as this process makes them: an owner, and the hall of its fronts."""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

import gateway
from gateway.admission.events import EndpointId
from gateway.app.named_files import Access
from gateway.app.owner import Owner
from gateway.app.parent import Parent
from gateway.config.engine import Launched
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.merged import Figures
from gateway.ops.metrics import Metrics
from gateway.tier import hall
from gateway.tier.hall import Hall

_LOOK = 0.1
"""Seconds between two looks whether all endpoints were probed."""
_log = structlog.get_logger("kvgate.tier")


class Reign:
    """Begun, changed, ended.

    Args:
        settings: all of them.
        endpoints: the configured ones.
        launched: the engines that kvgate launches.
        fronts: number of those that it waits for before it decides; None: those that the election knows of.
        election: of the tier, where there is one.
        before: called before each event of a core.
        parent: launches the engines; None: those of the gateways of the tier do.
        clock: monotonic seconds.

    Raises:
        ConfigurationError: the event log cannot be written.
    """

    def __init__(
        self,
        settings: Settings,
        endpoints: Mapping[EndpointId, Access],
        launched: Launched,
        fronts: int | None,
        *,
        election: hall.Reign | None = None,
        before: Callable[[], None] | None = None,
        parent: Parent | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hall = Hall(fronts, election)
        self._owner = Owner(
            settings,
            endpoints,
            self.hall,
            clock=clock,
            asker=self.hall.asker,
            metrics=Metrics(gateway.__version__),
            launched=launched,
            parent=parent or self.hall.launchers,
            before=before,
            carries=self.hall.carries,
        )

    @property
    def statuses(self) -> list[EndpointStatus]:
        """The present status of each endpoint."""
        return [monitor.status for monitor in self._owner.monitors.values()]

    async def figures(self) -> Figures:
        """What is counted and measured here, but for what the fronts count."""
        return await self._owner.figures(self.hall.fronts)

    def begin(self) -> None:
        """Watch the endpoints, and take fronts."""
        self.hall.begin(self._owner.cores, self._owner.monitors, self._owner)
        self._owner.start()
        _log.info("deciding", endpoints=[*self._owner.monitors], version=gateway.__version__)

    def restrict(self, share: float) -> None:
        """Fill no more than this share of each endpoint from now on; 0: decide nothing, whatever it is about."""
        self.hall.withhold(withholds=not share)
        self._owner.restrict(share)

    async def gauged(self) -> None:
        """Wait until each endpoint's gauge was read after it began: it shows what runs for gateways that are gone."""
        monitors = self._owner.monitors
        while not all(monitor.probed.is_set() for monitor in monitors.values()):  # noqa: ASYNC110  # they come and go
            await asyncio.sleep(_LOOK)
        await asyncio.sleep(2 * self._owner.poll_interval)

    def go_by(self, settings: Settings, endpoints: Mapping[EndpointId, Access]) -> None:
        """Put other settings in force."""
        self._owner.go_by(settings, endpoints)

    def leave(self) -> None:
        """Decide nothing any more, at once: the fronts turn to the next owner."""
        self.restrict(0.0)
        self.hall.close()

    async def end(self) -> None:
        """Close everything."""
        self.leave()
        await self._owner.stop()
