"""The engines on demand, which their parent starts and ends when the process that decides asks for it."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator

import structlog

from engine.events import BecameReady, Crashed, GaveUp, SupervisorEvent
from engine.program import Engine
from engine.spec import EngineSpec
from engine.supervisor import Supervisor
from gateway.admission.events import ResidencyPhase
from gateway.app.parent import RUN
from gateway.pools.launcher import EngineNews
from gateway.serve.sleep import fall_asleep, wake

_LOOK = 0.05
"""Seconds between two looks whether an engine that leaves has ended."""
_log = structlog.get_logger("kvgate.supervisor")


def _answers(host: str, port: int) -> bool:
    """Whether somebody listens at an address of this machine, frozen or not. The kernel knows at once."""
    try:
        socket.create_connection((host, port), timeout=_LOOK).close()
    except TimeoutError:  # too many wait to be accepted
        return True
    except OSError:
        return False
    return True


def _taken(specs: Iterable[EngineSpec]) -> str | None:
    """The first of these addresses at which somebody listens."""
    return next((spec.address for spec in specs if _answers(spec.host, spec.port)), None)


class _Held:
    """One engine, and its port, which is kept while it does not run: another program would take it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.wanted = self.starting = False
        self.phase = ResidencyPhase.STOPPED
        self.sleeps = engine.sleeps
        self.asleep = self.lost = False
        """Whether its process sleeps, and whether it has ended by itself, and is not to be started again."""
        self.leaves = False
        """Whether it is to be ended for good."""
        self.crashed = False
        """Whether it ended by itself since it was last told to sleep."""
        self.woken_in: float | None = None
        """Seconds that the process took to wake."""
        self.following: asyncio.Task[None] | None = None
        times = engine.history.read().seconds.values() if engine.history is not None else ()
        self.starts_in = sum(times) or None
        self._port: socket.socket | None = None
        self.keep_port()

    @property
    def takes(self) -> float | None:
        """Seconds its last start took, or its waking, if that is what comes next."""
        return self.woken_in if self.woken_in is not None else self.starts_in

    def keep_port(self) -> None:
        """Bind it, and do not listen."""
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._port.bind((self.engine.spec.host, self.engine.spec.port))
        except OSError:  # it is not quite free yet; then the engine's own start says what is wrong
            self.free_port()

    def free_port(self) -> None:
        """Leave it to the engine."""
        if self._port is not None:
            self._port.close()
            self._port = None


class Attendant:
    """Obeys. It never decides: it starts what is to run, and ends what is not to.

    Args:
        supervisor: runs the engines.
        tell: gets the news for the process that decides.
        place: of an engine, by what that process knows: one engine at a time may have it.
    """

    def __init__(
        self, supervisor: Supervisor, tell: Callable[[EngineNews], None], place: Callable[[Engine], str]
    ) -> None:
        self._supervisor = supervisor
        self._tell = tell
        self._place = place
        self._held: dict[str, _Held] = {}
        """By address."""
        self._turn = 0
        """How often it began to tell another process."""
        self._going: Collection[Engine] = ()
        """Engines that are about to end, of which the process that decides knows nothing."""
        self._waiting: set[str] = set()
        """Addresses of engines that are to be started once another has ended."""
        self._leaving: set[str] = set()
        """Addresses of engines that always run and are to end: who decides says when nothing is on them."""
        self._in_the_way: set[str] = set()
        """Addresses of those others: who decides is to end them as soon as nothing is on them."""

    def add(self, engine: Engine) -> None:
        """Attend to another engine. It does not run yet."""
        held = self._held[engine.spec.address] = _Held(engine)
        self._say(held)

    def renew(self, engine: Engine) -> None:
        """Take another description of an engine, which goes on."""
        self._held[engine.spec.address].engine = engine

    async def leave(self, engine: Engine, within: float) -> None:
        """Have the process that decides leave an engine alone; wait at most so many seconds until nothing is on it.

        One on demand has ended then.
        """
        address = engine.spec.address
        if (held := self._held.get(address)) is not None:
            held.leaves = True
            self._say(held)
        else:
            self._leaving.add(address)
            self._say_leaving(address)
        try:
            async with asyncio.timeout(within):
                while self._is_on(address):  # noqa: ASYNC110  # it may start and end meanwhile
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            _log.warning(f"{engine.name}: it ends with requests on it, as they did not end in {within:g} s")
        finally:
            self._leaving.discard(address)

    async def remove(self, engine: Engine) -> None:
        """End an engine, and forget it."""
        held = self._held[engine.spec.address]
        held.sleeps, held.lost = False, held.asleep
        self._want(held, wanted=False)
        if held.following is not None:
            await asyncio.wait([held.following])
        held.free_port()
        del self._held[engine.spec.address]
        self._waiting.discard(engine.spec.address)
        self._catch_up()

    @contextlib.contextmanager
    def going(self, engines: Collection[Engine]) -> Iterator[None]:
        """While the block runs, none is started in the place, or on the GPUs, of one of these that still runs."""
        self._going = engines
        try:
            yield
        finally:
            self._going = ()
        self._catch_up()

    def gone(self, engine: Engine) -> None:
        """Note that one of these has ended that always ran: it is in nobody's way any more."""
        self._going = [one for one in self._going if one != engine]
        self._catch_up()

    def obey(self, order: str, address: str) -> None:
        """Carry out an order, `RUN` or `END`, as soon as that may be."""
        self._waiting.discard(address)
        if (held := self._held.get(address)) is None:
            self._leaving.discard(address)
            return
        if order == RUN and self._is_taken(held):
            self._waiting.add(address)
        else:
            self._want(held, wanted=order == RUN and not held.leaves)
        self._clear_the_way()

    def on_event(self, event: SupervisorEvent) -> None:
        """Note how long a start took, and that an engine which ran was given up, or one that slept ended."""
        held = next((held for held in self._held.values() if held.engine.name == event.program), None)
        match event:
            case BecameReady(seconds=seconds) if held is not None:
                held.starts_in = seconds
            case Crashed() if held is not None:
                held.crashed = True
                if held.asleep:
                    held.lost = True  # else it would be started again, awake
                    self._follow(held)
            case GaveUp(diagnosis=diagnosis) if held is not None and held.phase is ResidencyPhase.UP:
                held.wanted, held.lost = False, True
                self._follow(held, str(diagnosis))

    def say_all(self) -> None:
        """Tell another process about every engine: from now on that one decides, or knows who does.

        What the one before ordered, and had to wait, that one orders anew if it is still wanted.
        """
        self._turn += 1
        self._waiting.clear()
        self._in_the_way.clear()
        for held in self._held.values():
            self._say(held)
        for address in self._leaving:
            self._say_leaving(address)

    def close(self) -> None:
        """Leave all ports."""
        for held in self._held.values():
            held.free_port()

    def _is_on(self, address: str) -> bool:
        """Whether an engine that is to be left alone has yet to end, or to be without requests."""
        held = self._held.get(address)
        return address in self._leaving if held is None else held.phase is not ResidencyPhase.STOPPED

    def _is_taken(self, held: _Held) -> bool:
        """Whether another one is in the way of this one.

        Who decides has ended it first, if it knows it: but not one that its settings no longer name.
        """
        always = [engine for engine in self._going if not engine.on_demand]
        return any(self._is_in_the_way(engine, held.engine) for engine in (*self._running(held), *always))

    def _running(self, apart_from: _Held) -> Iterator[Engine]:
        """The others that run, or are to."""
        for held in self._held.values():
            if held is not apart_from and (held.wanted or held.phase is not ResidencyPhase.STOPPED):
                yield held.engine

    def _is_in_the_way(self, engine: Engine, of: Engine) -> bool:
        """Whether an engine has another one's place, or is about to end on GPUs that the two do not share."""
        if self._place(engine) == self._place(of):
            return True
        may_share = engine.shares and of.shares
        return engine in self._going and not may_share and not {*engine.spec.gpus}.isdisjoint(of.spec.gpus)

    def _clear_the_way(self) -> None:
        """Tell the process that decides which are in the way now, and which are not any more."""
        before = self._in_the_way
        waiting = [self._held[address] for address in self._waiting & self._held.keys()]
        self._in_the_way = {
            engine.spec.address
            for held in waiting
            for engine in self._running(held)
            if self._is_in_the_way(engine, held.engine)
        }
        for address in (before ^ self._in_the_way) & self._held.keys():
            self._say(self._held[address])

    def _catch_up(self) -> None:
        """Start what had to wait."""
        for address in list(self._waiting):
            self.obey(RUN, address)
        self._clear_the_way()

    def _want(self, held: _Held, *, wanted: bool) -> None:
        held.wanted = wanted
        if held.starting and not wanted:
            self._supervisor.interrupt(held.engine.name)
        self._follow(held)

    def _follow(self, held: _Held, wrong: str | None = None) -> None:
        if held.following is None:
            held.following = asyncio.get_running_loop().create_task(self._bring_about(held, wrong))

    async def _bring_about(self, held: _Held, wrong: str | None) -> None:
        """Start or end an engine until it is as it is wanted."""
        try:
            while (held.phase is ResidencyPhase.UP) != held.wanted or held.lost:
                if held.lost:
                    await self._remove(held)
                elif held.wanted:
                    wrong = await self._start(held)
                else:
                    await self._end(held)
        finally:
            held.following = None
        self._say(held, wrong)
        self._catch_up()

    async def _start(self, held: _Held) -> str | None:
        """Wake or start it; return why it does not run."""
        self._enter(held, ResidencyPhase.STARTING)
        if held.asleep and (await self._wake(held) or not held.wanted):
            return None
        held.phase = ResidencyPhase.STARTING
        await self._vacated(held)
        if not held.wanted:
            held.phase = ResidencyPhase.STOPPED
            return None
        held.free_port()
        held.starting = True
        try:
            failure = await self._supervisor.add(held.engine)
        finally:
            held.starting = False
        if failure is None:
            held.phase = ResidencyPhase.UP
            return None
        asked_to_end, held.wanted = not held.wanted, False
        held.phase = ResidencyPhase.STOPPED
        held.keep_port()
        return None if asked_to_end else str(failure)

    async def _vacated(self, held: _Held) -> None:
        """Wait until nobody answers at the addresses of its place: engines of another kvgate that is about to go may.

        At most as long as an engine may take to end: then the start itself says what is wrong.
        """
        there = [
            other.engine.spec
            for other in self._held.values()
            if self._place(other.engine) == self._place(held.engine) and not other.asleep
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(held.engine.policy.stop_timeout):
                told = False
                while held.wanted and (taken := _taken(there)) is not None:
                    if not told:
                        _log.warning(f"{held.engine.name}: it waits, as somebody listens in its place", at=taken)
                        told = True
                    await asyncio.sleep(_LOOK)  # nobody tells when another process ends

    async def _wake(self, held: _Held) -> bool:
        """Wake it; if that fails, end it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if await wake(held.engine.spec.url):
            held.woken_in = loop.time() - began
            held.phase, held.asleep = ResidencyPhase.UP, False
            _log.info(f"{held.engine.name}: awake after {held.woken_in:.1f} s")
            return True
        _log.warning(f"{held.engine.name}: it does not wake, so it is started again")
        await self._remove(held)
        return False

    async def _end(self, held: _Held) -> None:
        """Have it sleep or end."""
        self._enter(held, ResidencyPhase.LEAVING)
        held.crashed = False
        sleeps = held.sleeps and await fall_asleep(held.engine.spec.url)
        if sleeps and held.sleeps and not held.crashed:  # it may have been taken out meanwhile
            held.asleep, held.phase = True, ResidencyPhase.STOPPED
            _log.info(f"{held.engine.name}: sleeps")
            return
        if held.sleeps:
            _log.warning(f"{held.engine.name}: it cannot sleep, so it ends")
        await self._remove(held)

    async def _remove(self, held: _Held) -> None:
        """End its process."""
        held.phase = ResidencyPhase.LEAVING
        await self._supervisor.remove(held.engine.name)
        held.phase = ResidencyPhase.STOPPED
        held.asleep = held.lost = False
        held.woken_in = None
        held.keep_port()

    def _enter(self, held: _Held, phase: ResidencyPhase) -> None:
        held.phase = phase
        self._say(held)

    def _say(self, held: _Held, wrong: str | None = None) -> None:
        address = held.engine.spec.address
        leaves = held.leaves or address in self._in_the_way
        self._tell(EngineNews(address, held.phase, held.takes, wrong, self._turn, leaves))

    def _say_leaving(self, address: str) -> None:
        self._tell(EngineNews(address, ResidencyPhase.UP, turn=self._turn, leaves=True))
