"""The reload of a gateway without a supervisor, on SIGHUP or `kvgate reload`, while it serves."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from engine.control import Reload, Say, control
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.config.sources import Sources
from gateway.runtime.interrupts import early, has_terminal
from gateway.serve.discovery import Discovery
from gateway.serve.served import Served

_UNCHANGED = 2
"""Exit code of a reload that changed nothing because the settings are wrong."""
_log = structlog.get_logger("kvgate.reload")


class Alone:
    """Changes an application's settings, one reload at a time.

    Args:
        application: the application that serves.
        sources: the sources of its settings.
        discovery: of its endpoints.
    """

    def __init__(self, application: Served, sources: Sources, discovery: Discovery) -> None:
        self._application = application
        self._sources = sources
        self._discovery = discovery

    async def reload(self, request: Reload, say: Say) -> int:
        """Apply the current settings. Returns an exit code. Unusable settings change nothing."""
        async with self._discovery.turn:
            file = Path(request.config) if request.config is not None else None
            try:
                given = await asyncio.to_thread(self._sources.read, file, request.changes)
                settings = await self._discovery.complete(given)
                change = await self._application.change(settings)
            except (ConfigurationError, OSError) as error:
                say(f"{error}\nNothing was changed.")
                _log.error("settings cannot be used: nothing was changed", reason=str(error))
                return _UNCHANGED
            self._discovery.follow(given, settings)
        for line in change.told():
            say(line)
        if change.live:
            say(f"Changed: {', '.join(change.live)}.")
        elif file is None and not request.changes and not self._sources.has_file:
            say("kvgate was started without a configuration file: there is nothing to read but keys and certificates.")
        else:
            say("No setting that can change now has changed; keys and certificates were read again.")
        return 0

    @contextlib.asynccontextmanager
    async def asked(self, close: Callable[[], None]) -> AsyncIterator[None]:
        """Handle SIGHUP and requests of `kvgate reload` while the block runs.

        Calls `close` if SIGHUP means that the terminal was closed.
        """
        loop, hang_up = asyncio.get_running_loop(), asyncio.Event()
        had_terminal = has_terminal()

        def on_signal() -> None:
            if had_terminal and not has_terminal():
                close()
            hang_up.set()

        loop.add_signal_handler(signal.SIGHUP, on_signal)
        if early.take():
            hang_up.set()
        watching = [asyncio.create_task(self._follow(hang_up)), asyncio.create_task(self._discover())]
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(control(self._application.where, self.reload))
            except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
                _log.warning("`kvgate reload` cannot reach this kvgate, but SIGHUP can", reason=str(error))
            try:
                yield
            finally:
                # Ignore it from now on: its default would end a process that drains.
                loop.add_signal_handler(signal.SIGHUP, lambda: None)
                for task in watching:
                    task.cancel()

    async def _discover(self) -> None:
        """Go by the endpoints that are found, for ever."""

        async def change(settings: Settings) -> None:
            await self._application.change(settings)

        await self._discovery.run(change, _log.info)

    async def _follow(self, hang_up: asyncio.Event) -> None:
        """Reload on each signal, for ever. A signal during a reload starts another one."""
        while True:
            await hang_up.wait()
            hang_up.clear()
            try:
                await self.reload(Reload(), lambda line: _log.info("reload", said=line))
            except Exception:  # noqa: BLE001  # the next signal must be heard all the same
                _log.exception("the reload broke off")
