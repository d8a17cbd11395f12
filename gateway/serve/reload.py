"""The deployment of some settings, and its change to other settings while it serves (SIGHUP, `kvgate reload`).

It supervises processes; `alone.py` is for a gateway without a supervisor. `config/reloadable.py` says which settings
change live, and what the others need.
"""

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.assembly import moved
from engine.cache import SetupError
from engine.control import Reload, Say, control
from engine.events import BecameReady, Crashed, LinePrinted, Stopped, SupervisorEvent
from engine.host_memory import free_bytes
from engine.nvml import gpus
from engine.program import Engine, Program, Role
from engine.supervisor import Supervisor
from gateway.app.parent import END, RUN, as_line
from gateway.config.errors import ConfigurationError
from gateway.config.reloadable import ANSWER, FIXED, SettingsChange
from gateway.config.settings import Settings
from gateway.config.tls import clients_context
from gateway.pools.launcher import EngineEnded, EngineNews
from gateway.runtime.failure import USAGE_ERROR
from gateway.runtime.interrupts import early, has_terminal
from gateway.serve.checks import preflight
from gateway.serve.discovery import Discovery
from gateway.serve.gateways import STILL, FailedError, Gateways
from gateway.serve.hang_restarts import Hangs
from gateway.serve.launch import Gateway, agrees, programs, served_name, telling
from gateway.serve.on_demand_engines import Attendant
from gateway.serve.owner_socket import OwnerSocket, expect_free
from gateway.serve.processes import is_cut, worker_count
from gateway.serve.rollout import Change, fronting, knows, notice, serves
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
        engines: the engines that run now.

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
            self.engines, gateways = programs(settings, python, self._sockets, owner=owner)
        except BaseException:
            self._close()
            raise
        if settings.tier.redis is None:  # in a tier another gateway serves, so nobody is to wait for the start of this
            for listening in self._sockets:
                listening.listen(BACKLOG)
        self._hangs = Hangs(self._at)
        always = [engine for engine in self.engines if not engine.on_demand]
        self._supervisor = Supervisor(
            [*always, *gateways], self._on_event, self._on_news, self._on_ended, self._come_and_go
        )
        self._gateways = Gateways(gateways, self._supervisor, self._say, self._say_of_engines)
        self._attendant = Attendant(self._supervisor, self._on_engine, self._gateways.place)
        for engine in self.engines:
            if engine.on_demand:
                self._attendant.add(engine)
        self._last_call: asyncio.Task[None] | None = None
        self._ended: dict[str, EngineEnded] = {}
        """Of each engine that ended by itself and is not ready again, by its program's name."""
        self._took: dict[str, float] = {}
        """Seconds of an engine's last start, by its program's name."""
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
            self._attendant.close()
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
            self._say(str(error) if isinstance(error, FailedError) else f"The reload broke off: {error!r}\n{STILL}")
            for engine in [engine for engine in self.engines if not knows(self._gateways.settings, engine)]:
                await self._stop(engine)
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
        if any(engine not in self.engines for engine in engines):
            preflight(settings)
        return engines, gateways

    def _described(self, settings: Settings) -> tuple[list[Engine], list[Gateway]]:
        """The programs of some settings. Where an owner decides, one does as long as this runs."""
        owner = self._owner if self._gateways.is_owned or is_cut(settings) else None
        return programs(settings, self._python, self._sockets, self.engines, owner)

    async def _discovered(self, settings: Settings) -> None:
        """Have the running gateways go by other endpoints; engines and gateways stay.

        Raises:
            ConfigurationError: not all of them do.
        """
        _, gateways = await asyncio.to_thread(self._described, settings)
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
        before = self._gateways.running
        change = SettingsChange.between(before[0].settings, gateways[0].settings)
        same_engines = len(engines) == len(self.engines) and all(engine in self.engines for engine in engines)
        if not same_engines or change.later or before[0].described != gateways[0].described:
            return False
        if not agrees(before[0], gateways[0]):
            return False
        if any(self._gave_up(engine) for engine in engines):
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
        for engine in [kept for kept in engines if kept in self.engines]:
            if self._gave_up(engine):
                await self._stop(engine)
        if len(gateways) > len(self._gateways.running):
            await self._gateways.divide(self._sockets, self._owner)
        change = Change.between(self.engines, engines)
        going = [old for old, _ in (*change.taken_over, *change.replaced)]
        with self._attendant.going((*going, *change.removed)):
            for engine in change.added:
                await self._start(engine)
            async with self._taking_over(change.taken_over):
                pending = list(change.replaced)
                while pending:
                    old, new = pending.pop(0)
                    await self._replace(old, new, _meanwhile(gateways, pending), settings)
                if not change.replaced:
                    await self._gateways.hand_over(gateways)
            for engine in change.removed:
                await self._stop(engine)
        self._renew(engines)

    def _renew(self, engines: Sequence[Engine]) -> None:
        """Go by the new descriptions of engines that go on: they may have other places, and share what they have."""
        self.engines = [next((new for new in engines if new == old), old) for old in self.engines]
        for engine in self.engines:
            if engine.on_demand:
                self._attendant.renew(engine)

    @contextlib.asynccontextmanager
    async def _taking_over(self, pairs: Sequence[tuple[Engine, Engine]]) -> AsyncIterator[None]:
        """In a tier, where all reach an engine at its address: the old ones end, then the new ones may start.

        The old ones come back if the block fails before another gateway decides.
        """
        decides = self._gateways.running[0]
        for old, new in pairs:
            self._say(f"{old.name}: ends when nothing is on it; the next request starts {new.name}")
        await self._exchange(pairs)
        try:
            yield
        except Exception:
            if self._gateways.running[0] is decides:
                await self._exchange([(new, old) for old, new in pairs])
            raise

    async def _exchange(self, pairs: Sequence[tuple[Engine, Engine]]) -> None:
        """End the first of each pair, then have the second ones start on demand."""
        await asyncio.gather(*(self._stop(engine) for engine, _ in pairs))
        for _, engine in pairs:
            await self._start(engine)

    async def _replace(self, old: Engine, new: Engine, gateways: list[Gateway], settings: Settings) -> None:
        why = None if new.on_demand else await self._no_surge(new, settings)
        if why is None:
            how = "starts on demand" if new.on_demand else "starts beside it and takes over when it is ready"
            self._say(f"{old.name}: surge: a new engine {how}")
            await self._start(new)
            await self._gateways.hand_over(gateways)
            await self._stop(old)
            return
        others = sum(serves(engine) == serves(old) for engine in self.engines) - 1
        patience = settings.admission.queue.no_endpoint_ttl
        said = notice(old, others=others, took=self._took.get(old.name), patience=patience)
        self._say(f"{old.name}: in_place, as {why}: {said}")
        before, was = self._gateways.running, old if old.on_demand else self._supervisor.program(old.name)
        await self._gateways.hand_over(gateways)
        await self._stop(old)
        try:
            await self._start(new)
        except FailedError as error:
            again = "starts on demand again" if old.on_demand else "started again as it was"
            self._say(f"{error}\n{old.name}: {again}")
            assert isinstance(was, Engine)  # noqa: S101 - it goes on as what it was started as
            back = was if was.on_demand else moved(was, new.spec.port)
            if back.on_demand:
                await self._start(back)
            else:
                self.engines.append(back)
                self._supervisor.launch(back)  # again and again, if what ended has yet to leave its memory
            await self._gateways.hand_over(_meanwhile(before, [(back, old)]))
            raise FailedError(STILL) from None

    async def _no_surge(self, new: Engine, settings: Settings) -> str | None:
        """Why an engine has to wait for the end of the one it replaces; None if it need not."""
        chosen = {served_name(model): model.engine.reload for model in settings.models if model.engine is not None}[
            serves(new)
        ]
        if chosen == "auto":
            return await asyncio.to_thread(_shortage, new)
        return None if chosen == "surge" else "the settings say"

    async def _start(self, engine: Engine) -> None:
        self.engines.append(engine)
        if engine.on_demand:
            self._attendant.add(engine)
            return
        failure = await self._supervisor.add(engine)
        if failure is not None:
            self.engines.remove(engine)
            raise FailedError(f"{engine.name} does not start. {failure}\n{STILL}")

    async def _stop(self, engine: Engine) -> None:
        self.engines.remove(engine)
        if engine.on_demand:
            await self._leave(engine)
            await self._attendant.remove(engine)
        else:
            await self._supervisor.remove(engine.name)

    async def _leave(self, *engines: Engine) -> None:
        """In a tier, have requests of other gateways leave engines that are to end."""
        settings = self._gateways.settings
        if settings.tier.redis is not None:
            within = settings.server.shutdown_timeout
            await asyncio.gather(*(self._attendant.leave(engine, within) for engine in engines))

    def _gave_up(self, engine: Engine) -> bool:
        """Whether an engine will not be started again. One on demand always may."""
        return not engine.on_demand and self._supervisor.gave_up(engine.name)

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
                await self._leave(*self.engines)
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

    def _at(self, where: str) -> Program | None:
        return next((engine for engine in self.engines if engine.spec.address == where), None)

    def _on_news(self, gateway: Program, news: str) -> None:
        kind, _, rest = news.partition(" ")
        if kind == ANSWER:
            self._gateways.answered(gateway.name, rest.strip())
            return
        if kind in {RUN, END}:
            if gateway.name == self._gateways.voice:  # one that leaves decides no more
                self._attendant.obey(kind, rest)
            return
        self._hangs.on_news(gateway, news, _now())

    def _on_engine(self, news: EngineNews | EngineEnded) -> None:
        """Tell the process that decides, or knows who does. One that starts is told all when it is up."""
        self._supervisor.tell(self._gateways.voice, as_line(news))

    async def _look_for_hangs(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            for name, reason in self._hangs.overdue(_now()).items():
                self._supervisor.hung(name, reason)

    def _on_event(self, event: SupervisorEvent) -> None:
        self._hangs.on_event(event, _now())
        if isinstance(event, Crashed | Stopped):
            self._gateways.answered(event.program, None)  # the next one starts with the settings it was given
        if isinstance(event, BecameReady):
            self._took[event.program] = event.seconds
            if event.program == self._gateways.voice:
                self._say_of_engines()
        self._note_end(event)
        self._attendant.on_event(event)
        self._tell(event)
        if self._hears is not None and not isinstance(event, LinePrinted):
            self._hears(str(event))

    def _say_of_engines(self) -> None:
        """Tell a process that has just begun to say which engines run."""
        self._attendant.say_all()
        for ended in self._ended.values():
            self._on_engine(ended)

    def _note_end(self, event: SupervisorEvent) -> None:
        """Tell the process that decides why an engine ended, and when it is ready again."""
        engine = next((engine for engine in self.engines if engine.name == event.program), None)
        match event:
            case Crashed(program, why) if engine is not None:
                self._ended[program] = EngineEnded(engine.spec.address, why.cause, why.remedy or None)
                self._on_engine(self._ended[program])
            case BecameReady(program) | Stopped(program) if (ended := self._ended.pop(program, None)) is not None:
                self._on_engine(EngineEnded(ended.address))

    def _on_ended(self, role: Role) -> None:
        """Who comes after the last gateway of its port has ended does not wait for the end of all else."""
        if role is Role.GATEWAY:
            self._last_call = asyncio.get_running_loop().create_task(last_call(self._sockets, self._tls()))

    def _come_and_go(self, role: Role) -> bool:
        """Whether programs of a role do: an engine that cannot run is no reason to end while others start on demand."""
        return role is Role.ENGINE and any(engine.on_demand for engine in self.engines)

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


def _meanwhile(gateways: Sequence[Gateway], pending: Sequence[tuple[Engine, Engine]]) -> list[Gateway]:
    """The gateways while the old engine of each pair still serves in place of the new one."""
    return [telling(gateway, fronting(gateway.settings, pending)) for gateway in gateways]


def _shortage(engine: Engine) -> str | None:
    """Why an engine has no room beside the running ones; None if it has."""
    return engine.spec.kind.shortage(engine.spec, os.environ, gpus(), free_bytes())


def _now() -> float:
    return asyncio.get_running_loop().time()
