"""The deployment of some settings, and its change to other settings while it serves (SIGHUP, `kvgate reload`).

It supervises processes; `alone.py` is for a gateway without a supervisor. `config/reloadable.py` says which settings
change live, and what the others need.
"""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from engine.cache import SetupError
from engine.control import Reload, Say, control
from engine.events import Crashed, LinePrinted, Stopped, SupervisorEvent
from engine.program import Engine, Program, Role
from engine.supervisor import Supervisor
from gateway.app.parent import END, RUN
from gateway.config.errors import ConfigurationError
from gateway.config.reloadable import ANSWER, FIXED, SettingsChange
from gateway.config.settings import Settings
from gateway.config.tls import clients_context
from gateway.runtime.failure import USAGE_ERROR
from gateway.runtime.interrupts import early, has_terminal
from gateway.serve.checks import preflight
from gateway.serve.discovery import Discovery
from gateway.serve.engines import Engines
from gateway.serve.gateways import FailedError, Gateways
from gateway.serve.hang_restarts import Hangs
from gateway.serve.launch import Gateway, programs, telling
from gateway.serve.owner_socket import OwnerSocket, expect_free
from gateway.serve.processes import is_cut, worker_count
from gateway.server.last_call import BACKLOG, last_call
from gateway.server.server import bind_all, close_all, port_of
from gateway.tier.key_file import tier_key

Load = Callable[[Path | None, Mapping[str, Any]], Settings]
"""Rereads the settings, from another file if one is given, with changes that override them."""

_FAILED = 1
"""Exit code of a reload that did not finish."""
_LOOK = 1.0
"""Seconds between two checks for hung engines."""


class Deployment:
    """The engines and the gateways of some settings, under one supervisor.

    This process binds the clients' sockets once and owns them. So connections wait while a crashed gateway restarts,
    and two gateways can accept from them during a handover.

    Args:
        discovery: of the settings of all that is to run.
        load: rereads them.
        tell: gets every event of the programs.
        say: gets lines for a human about changes to the programs.
        python: interpreter with vllm for engines that name none; None to set one up now.

    Attributes:
        engines: its engines.

    Raises:
        ConfigurationError: the settings cannot be used.
        SetupError: the engine's environment could not be made.
        PortTakenError: a port is taken.
    """

    def __init__(
        self,
        discovery: Discovery,
        load: Load,
        tell: Callable[[SupervisorEvent], None],
        say: Say,
        python: Path | None = None,
    ) -> None:
        self._load = load
        self._tell = tell
        self._notes = say
        self._python = python
        self._discovery = discovery
        settings = discovery.settings
        if settings.tier.advertise is not None:
            expect_free(settings.tier.advertise)
        self._sockets = bind_all(settings.server)
        self._owner = OwnerSocket(worker_count(settings), tier_key(settings.tier))
        try:
            owner = self._owner if is_cut(settings) else None
            engines, gateways = programs(settings, python, self._sockets, owner=owner)
        except BaseException:
            self._close()
            raise
        if settings.tier.redis is None:  # in a tier another gateway serves, so nobody is to wait for the start of this
            for listening in self._sockets:
                listening.listen(BACKLOG)
        always = [engine for engine in engines if not engine.on_demand]
        self._supervisor = Supervisor(
            [*always, *gateways], self._on_event, self._on_news, self._on_ended, self._come_and_go
        )
        self._gateways = Gateways(gateways, self._supervisor, self._say, self._succeeded)
        self.engines = Engines(engines, self._supervisor, self._gateways, self._say)
        self._hangs = Hangs(self.engines.at)
        self._last_call: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[int] | None = None
        self._once_more = False
        """Whether SIGHUP came during a reload, which may have read the settings before it."""
        self._hears: Say | None = None

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set, or nothing useful can run any more; return the exit code.

        SIGHUP reloads. If it means that the terminal was closed, kvgate stops.
        """
        loop = asyncio.get_running_loop()
        had_terminal = has_terminal()

        def hang_up() -> None:
            if had_terminal and not has_terminal():
                stop.set()
            elif self._reloading is None:
                self._begin(Reload(), None)
            else:
                self._once_more = True

        loop.add_signal_handler(signal.SIGHUP, hang_up)
        if early.take():
            hang_up()
        try:
            async with self._asked():
                return await self._supervise(stop)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            if self._last_call is not None:
                await self._last_call
            self.engines.close()
            self._close()

    async def reload(self, request: Reload, say: Say) -> int:
        """Change to the current settings, or to those of another file. Returns an exit code.

        `say` gets lines for the person who waits. Unusable settings change nothing.
        """
        if self._reloading is not None:
            say("Another reload is under way: ask again when it has ended.")
            return _FAILED
        task = self._begin(request, say)
        await asyncio.wait([task])
        if task.cancelled():
            say("kvgate is stopping: the reload was given up.")
            return _FAILED
        return task.result()

    def _begin(self, request: Reload, say: Say | None) -> asyncio.Task[int]:
        self._hears = say
        self._reloading = task = asyncio.get_running_loop().create_task(self._reload(request))

        def ended(task: asyncio.Task[int]) -> None:
            self._reloading = self._hears = None
            again, self._once_more = self._once_more, False
            if again and not task.cancelled():
                self._begin(Reload(), None)

        task.add_done_callback(ended)
        return task

    async def _reload(self, request: Reload) -> int:
        async with self._discovery.turn:
            return await self._carry_out(request)

    async def _carry_out(self, request: Reload) -> int:
        try:
            given, told = await asyncio.to_thread(self._read, request)
            settings = await self._discovery.complete(given)
            engines, gateways = await asyncio.to_thread(self._programs, settings)
        except (ConfigurationError, SetupError, OSError) as error:
            self._say(f"{error}\nNothing was changed.")
            return USAGE_ERROR
        try:
            with self._supervisor.changing():
                await self._change(settings, engines, gateways)
        except ConfigurationError as error:
            self._say(f"{error}\nNothing was changed.")
            return USAGE_ERROR
        except Exception as error:  # noqa: BLE001 - whatever it was, engines that no gateway knows must not stay
            why = str(error) if isinstance(error, FailedError) else f"The reload broke off: {error!r}"
            self._say(f"{why}\nWhat ran before serves on.")
            await self.engines.end_unknown()
            return _FAILED
        self._discovery.follow(given, settings)
        for line in told:
            self._say(line)
        self._say("The new settings are in force.")
        return 0

    def _read(self, request: Reload) -> tuple[Settings, list[str]]:
        settings = self._load(Path(request.config) if request.config is not None else None, request.changes)
        before = self._discovery.settings
        fixed = {name: getattr(before.server, name) for name in FIXED}
        told = SettingsChange.between(before, settings).told(launches=True)
        return settings.model_copy(update={"server": settings.server.model_copy(update=fixed)}), told

    def _programs(self, settings: Settings) -> tuple[list[Engine], list[Gateway]]:
        engines, gateways = self._described(settings)
        if any(engine not in self.engines.running for engine in engines):
            preflight(settings)
        return engines, gateways

    def _described(self, settings: Settings) -> tuple[list[Engine], list[Gateway]]:
        """The programs of some settings. Where an owner decides, one does as long as this runs."""
        owner = self._owner if self._gateways.is_owned or is_cut(settings) else None
        return programs(settings, self._python, self._sockets, self.engines.running, owner)

    async def _discovered(self, settings: Settings) -> None:
        """Have the running gateways go by other endpoints; engines and gateways stay.

        Raises:
            ConfigurationError: not all of them do, or other engines run than these settings describe.
        """
        engines, gateways = await asyncio.to_thread(self._described, settings)
        if any(engine not in self.engines.running for engine in engines):
            raise ConfigurationError("the last reload replaced some engines and failed: reload again")
        try:
            running = zip(self._gateways.running, gateways, strict=True)
            await self._gateways.become([telling(old, new.settings) for old, new in running])
        except TimeoutError:
            raise ConfigurationError("a gateway does not answer") from None

    async def _go_by(self, engines: list[Engine], gateways: list[Gateway]) -> bool:
        """Have the running gateways apply other settings; False if that needs new gateways or other engines.

        Raises:
            ConfigurationError: the settings cannot be used.
        """
        change = self._gateways.change_to(gateways)
        if change is None or not self.engines.are(engines):
            return False
        try:
            await self._gateways.become(gateways)
        except TimeoutError:
            return False
        names = ", ".join(gateway.name for gateway in self._gateways.running)
        self._say(f"{names}: changed {', '.join(change.live) or 'nothing but keys and certificates, read again'}")
        return True

    async def _change(self, settings: Settings, engines: list[Engine], gateways: list[Gateway]) -> None:
        if await self._go_by(engines, gateways):
            return
        if len(gateways) > len(self._gateways.running):
            await self._gateways.divide(self._sockets, self._owner)
        await self.engines.become(engines, gateways, settings)

    async def _supervise(self, stop: asyncio.Event) -> int:
        """Run the supervisor. At its end, a reload under way is given up first."""
        ending = asyncio.Event()
        supervising = asyncio.create_task(self._supervisor.run(ending))
        stopping = asyncio.create_task(stop.wait())
        looking = [
            asyncio.create_task(self._look_for_hangs()),
            asyncio.create_task(self._discovery.run(self._discovered, self._notes)),
        ]
        try:
            await asyncio.wait({supervising, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._reloading is not None:
                self._reloading.cancel()
                await asyncio.wait([self._reloading])
            if not supervising.done():
                await self.engines.leave()
            ending.set()
            return await supervising
        finally:
            stopping.cancel()
            for task in looking:
                task.cancel()
            if not supervising.done():
                supervising.cancel()
                await asyncio.wait([supervising])

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Handle requests of `kvgate reload`. If their socket cannot be made, SIGHUP still works."""
        where = port_of(self._sockets[0]) or self._discovery.settings.server.host
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(control(where, self.reload))
            except OSError as error:
                self._say(f"`kvgate reload` cannot reach this kvgate, but SIGHUP can: {error}")
            yield

    def _on_news(self, gateway: Program, news: str) -> None:
        kind, _, rest = news.partition(" ")
        if kind == ANSWER:
            self._gateways.answered(gateway.name, rest.strip())
            return
        if kind in {RUN, END}:
            if gateway.name == self._gateways.voice:  # one that leaves decides no more
                self.engines.obey(kind, rest)
            return
        self._hangs.on_news(gateway, news, _now())

    async def _look_for_hangs(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            for name, reason in self._hangs.overdue(_now(), self._gateways.voice).items():
                self._supervisor.hung(name, reason)

    def _on_event(self, event: SupervisorEvent) -> None:
        self._hangs.on_event(event, _now())
        if isinstance(event, Crashed | Stopped):
            self._gateways.answered(event.program, None)  # the next one starts with the settings it was given
        self.engines.on_event(event)
        self._tell(event)
        if self._hears is not None and not isinstance(event, LinePrinted):
            self._hears(str(event))

    def _succeeded(self) -> None:
        """Tell the process that says from now on which engines run."""
        self.engines.say_all()

    def _on_ended(self, role: Role) -> None:
        """Who comes after the last gateway of its port has ended does not wait for the end of all else."""
        if role is Role.GATEWAY:
            self._last_call = asyncio.get_running_loop().create_task(last_call(self._sockets, self._tls()))

    def _come_and_go(self, role: Role) -> bool:
        """Whether programs of a role do: an engine that cannot run is no reason to end while others start on demand."""
        return role is Role.ENGINE and self.engines.come_and_go

    def _tls(self) -> ssl.SSLContext | None:
        """Of the clients, as far as its files can be read now."""
        with contextlib.suppress(ValueError):
            return clients_context(self._discovery.settings.server)
        return None

    def _say(self, text: str) -> None:
        self._notes(text)
        if self._hears is not None:
            self._hears(text)

    def _close(self) -> None:
        close_all(self._sockets)
        self._owner.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
