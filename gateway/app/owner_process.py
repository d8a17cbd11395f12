"""The owner of the decisions in a process of its own, with fronts in others."""

import asyncio
import socket
from types import MappingProxyType

import structlog

from gateway.app.deciding import DecidingProcess
from gateway.app.named_files import read_named_files
from gateway.app.parent import Parent
from gateway.app.reign import Reign
from gateway.app.telemetry import Exports
from gateway.config.engine import Launched
from gateway.config.reloadable import SettingsChange
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus

_log = structlog.get_logger("kvgate.tier")


class OwnerProcess(DecidingProcess):
    """Built from settings, started, changed, and stopped once its fronts have gone.

    Args:
        settings: all of them.
        listening: the unix socket for fronts.
        fronts: how many there are to be.
        launched: the engines that kvgate launches.

    Raises:
        ConfigurationError: a file that the settings name cannot be used, or a variable of OpenTelemetry.
    """

    def __init__(
        self, settings: Settings, listening: socket.socket, fronts: int, launched: Launched = MappingProxyType({})
    ) -> None:
        self.settings = settings
        self._listening = listening
        self.parent = Parent()
        self._reign = Reign(settings, read_named_files(settings).endpoints, launched, fronts, parent=self.parent)
        self._exports = Exports(self._reign.figures, "owner")
        self._server: asyncio.Server | None = None

    @property
    def active(self) -> int:
        """Fronts that are connected."""
        return self._reign.hall.fronts

    @property
    def endpoints(self) -> list[EndpointStatus]:
        """The present status of each endpoint."""
        return self._reign.statuses

    async def start(self, settle: float = 0.0) -> None:
        """Watch the endpoints and take fronts. `settle` is for a front: fronts wait by themselves."""
        del settle
        self._exports.start()
        self._reign.begin()
        self._server = await asyncio.get_running_loop().create_unix_server(self._reign.hall.line, sock=self._listening)

    async def change(self, settings: Settings) -> SettingsChange:
        """Put other settings in force, as far as they can change.

        Raises:
            ConfigurationError: a file that the settings name cannot be used. Nothing was changed.
        """
        change = SettingsChange.between(self.settings, settings)
        found = await asyncio.to_thread(read_named_files, change.settings)
        self.settings = change.settings
        self._reign.go_by(change.settings, found.endpoints)
        return change

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        await self._reign.end()
        _log.info("stopped")
        await self._exports.stop()
