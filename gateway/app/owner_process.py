"""The owner of the decisions in a process of its own, with fronts in others."""

import asyncio
import socket
import time
from collections.abc import Sequence

import structlog

import gateway
from gateway.app.opened import opened
from gateway.app.owner import Owner
from gateway.config.live import Change
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.metrics import Metrics
from gateway.tier.hall import Hall

_POLL = 0.1
"""Seconds between two checks for connected fronts."""
_log = structlog.get_logger("kvgate.tier")


class OwnerProcess:
    """Built from settings, started, changed, and stopped once its fronts have gone.

    Args:
        settings: all of them.
        listening: the unix socket for fronts.
        fronts: how many there are to be.
        launched: addresses of endpoints whose engines kvgate launches.

    Raises:
        ConfigurationError: a file that the settings name cannot be used.
    """

    def __init__(self, settings: Settings, listening: socket.socket, fronts: int, launched: Sequence[str] = ()) -> None:
        self.settings = settings
        self._listening = listening
        self._hall = Hall(fronts)
        endpoints = opened(settings).endpoints
        self._owner = Owner(
            settings,
            endpoints,
            self._hall,
            clock=time.monotonic,
            asker=self._hall.asker,
            metrics=Metrics(gateway.__version__),
            launched=launched,
        )
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """None: clients come to the fronts."""
        return 0

    @property
    def active(self) -> int:
        """Fronts that are connected."""
        return self._hall.fronts

    @property
    def endpoints(self) -> list[EndpointStatus]:
        """The present status of each endpoint."""
        return [monitor.status for monitor in self._owner.monitors.values()]

    @property
    def loaded(self) -> frozenset[str]:
        """Nothing: an owner counts no prompts."""
        return frozenset()

    async def start(self, settle: float = 0.0) -> None:
        """Watch the endpoints and take fronts. `settle` is for a front: fronts wait by themselves."""
        del settle
        self._hall.begin(self._owner.cores, self._owner.monitors, self._owner)
        self._owner.start()
        self._server = await asyncio.get_running_loop().create_unix_server(self._hall.line, sock=self._listening)
        _log.info("deciding", endpoints=[*self._owner.monitors], version=gateway.__version__)

    async def change(self, settings: Settings) -> Change:
        """Put other settings in force, as far as they can change.

        Raises:
            ConfigurationError: a file that the settings name cannot be used. Nothing was changed.
        """
        change = Change.between(self.settings, settings)
        found = await asyncio.to_thread(opened, change.settings)
        self.settings = change.settings
        self._owner.go_by(change.settings, found.endpoints)
        return change

    async def drain(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the fronts to go."""
        try:
            async with asyncio.timeout(timeout):
                while self._hall.fronts:  # noqa: ASYNC110  # fronts go when their requests have ended
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            _log.warning("gave up on fronts that did not go in time", fronts=self._hall.fronts)

    async def hand_over(self, timeout: float) -> None:
        """End at once: there are never two owners, and fronts wait for the next."""
        del timeout

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self._hall.close()
        await self._owner.stop()
        _log.info("stopped")
