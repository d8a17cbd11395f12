"""The engines of a deployment, and their successors: those that always run, and those on demand."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from engine.assembly import moved
from engine.control import Say
from engine.events import BecameReady, Crashed, Stopped, SupervisorEvent
from engine.host_memory import free_bytes
from engine.nvml import gpus
from engine.program import Engine
from engine.supervisor import Supervisor
from gateway.app.parent import as_line
from gateway.config.settings import Settings
from gateway.pools.launcher import EngineEnded, EngineNews
from gateway.serve.gateways import FailedError, Gateways
from gateway.serve.launch import Gateway, served_name, telling
from gateway.serve.on_demand_engines import Attendant
from gateway.serve.rollout import Change, elsewhere, knows, meanwhile, notice, serves


class Engines:
    """Others take over from them, and with them other gateways.

    Args:
        running: those that run now; the supervisor starts the ones that always run.
        supervisor: runs them.
        gateways: in front of them.
        say: gets a line for a human about each step.

    Attributes:
        running: those that run now, or may.
    """

    def __init__(self, running: Sequence[Engine], supervisor: Supervisor, gateways: Gateways, say: Say) -> None:
        self.running = list(running)
        self._supervisor = supervisor
        self._gateways = gateways
        self._say = say
        self._ended: dict[str, EngineEnded] = {}
        """Of each engine that ended by itself and is not ready again, by its program's name."""
        self._took: dict[str, float] = {}
        """Seconds of an engine's last start, by its program's name."""
        self._attendant = Attendant(supervisor, self._tell, gateways.place)
        for engine in running:
            if engine.on_demand:
                self._attendant.add(engine)

    @property
    def come_and_go(self) -> bool:
        """Whether some start on demand: then it is no reason to end that none runs."""
        return any(engine.on_demand for engine in self.running)

    def at(self, address: str) -> Engine | None:
        """The engine of an address."""
        return next((engine for engine in self.running if engine.spec.address == address), None)

    def are(self, engines: Sequence[Engine]) -> bool:
        """Whether they are these, and none was given up."""
        same = len(engines) == len(self.running) and all(engine in self.running for engine in engines)
        return same and not any(self._gave_up(engine) for engine in engines)

    def on_event(self, event: SupervisorEvent) -> None:
        """Note how long starts take, and tell the process that decides of ends."""
        if isinstance(event, BecameReady):
            self._took[event.program] = event.seconds
            if event.program == self._gateways.voice:
                self.say_all()
        self._note_end(event)
        self._attendant.on_event(event)

    def obey(self, order: str, address: str) -> None:
        """Carry out an order, `RUN` or `END`, of the process that decides."""
        self._attendant.obey(order, address)

    def say_all(self) -> None:
        """Tell a process that has just begun to say which engines run."""
        self._attendant.say_all()
        for ended in self._ended.values():
            self._tell(ended)

    async def become(self, engines: Sequence[Engine], gateways: Sequence[Gateway], settings: Settings) -> None:
        """Turn these engines into others, and the gateways into those of the new settings.

        Raises:
            FailedError: a program does not start. What ran before serves on, as far as it can.
        """
        for engine in [kept for kept in engines if kept in self.running and self._gave_up(kept)]:
            await self._stop(engine)
        change = Change.between(self.running, engines)
        going = [old for old, _ in (*change.taken_over, *change.replaced)]
        with self._attendant.going((*going, *change.removed)):
            for engine in change.added:
                await self._start(engine)
            async with self._taking_over(change.taken_over):
                await self._replace_all(change, gateways, settings)
            for engine in change.removed:
                await self._stop(engine)
        self._renew(engines)

    async def end_unknown(self) -> None:
        """End those that no gateway knows."""
        for engine in [engine for engine in self.running if not knows(self._gateways.settings, engine)]:
            await self._stop(engine)

    async def leave(self) -> None:
        """In a tier, have requests of other gateways leave these engines, which are to end."""
        if self._gateways.settings.tier.redis is not None:
            await self._leave(*self.running)

    def close(self) -> None:
        """Leave all ports."""
        self._attendant.close()

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

    async def _replace_all(self, change: Change, gateways: Sequence[Gateway], settings: Settings) -> None:
        """Replace one engine after the other. Each old one serves until its turn; one without a successor, to the end.

        Raises:
            FailedError: a program does not start. What took over before that stays.
        """
        done: list[Engine] = []

        def when(coming: Sequence[Engine], going: Sequence[Engine]) -> list[Gateway]:
            now, also = self._gateways.settings, (*going, *change.removed)
            return [telling(one, meanwhile(one.settings, now, coming, also)) for one in gateways]

        try:
            for old, new in change.replaced:
                pending = change.replaced[len(done) + 1 :]
                going, coming = [engine for engine, _ in pending], [engine for _, engine in pending]
                await self._replace(old, new, when((new, *coming), (old, *going)), when(coming, going), settings)
                done.append(new)
            if change.removed or not change.replaced:
                await self._gateways.hand_over(gateways)
        except FailedError as error:
            if not done:
                raise
            names = " and ".join(engine.name for engine in done)
            raise FailedError(f"{error}\nWhat has taken over stays: {names}.") from None

    async def _replace(
        self, old: Engine, new: Engine, until_then: list[Gateway], then: list[Gateway], settings: Settings
    ) -> None:
        """Replace an engine.

        Args:
            old: It goes.
            new: It comes.
            until_then: Gateways that know the old one and not the new one, which takes its place.
            then: The gateways after that.
            settings: What is to be.

        Raises:
            FailedError: a program does not start.
        """
        why = None if new.on_demand else await self._no_surge(new, settings)
        if why is None:
            how = "starts on demand" if new.on_demand else "starts beside it and takes over when it is ready"
            self._say(f"{old.name}: surge: a new engine {how}")
            await self._start(new)
            await self._turn_from(old, new, then)
            await self._stop(old)
            return
        others = sum(serves(engine) == serves(old) for engine in self.running) - 1
        patience = settings.admission.queue.no_endpoint_ttl
        said = notice(old, new, others=others, took=self._took.get(old.name), patience=patience)
        self._say(f"{old.name}: in_place, as {why}: {said}")
        before, was = self._gateways.running, old if old.on_demand else self._supervisor.program(old.name)
        if serves(old) == serves(new):
            # First, so that streams of other models are on the gateways of before, and hold up nobody who waits for it.
            await self._turn_from(old, new, until_then)
        await self._turn_from(old, new, then)
        await self._stop(old)
        try:
            await self._start(new)
        except FailedError as error:
            again = "starts on demand again" if old.on_demand else "started again as it was"
            self._say(str(error))
            assert isinstance(was, Engine)  # noqa: S101 - it goes on as what it was started as
            # Gateways that do not hear of it find it there. Those of another model must not.
            back = was if was.on_demand or serves(was) != serves(new) else moved(was, new.spec.port)
            if back.on_demand:
                await self._start(back)
            else:
                self.running.append(back)
                self._supervisor.launch(back)  # again and again, if what ended has yet to leave its memory
            await self._gateways.go_by([telling(one, elsewhere(one.settings, old, back)) for one in before])
            raise FailedError(f"{old.name}: {again}") from None

    async def _turn_from(self, old: Engine, new: Engine, gateways: Sequence[Gateway]) -> None:
        """Have gateways go by these. If they know the old engine no more, wait until nothing of theirs is on it.

        Only others take over from gateways that are to forget its model, too: what waits there still goes to it.
        """
        if serves(old) == serves(new) or not knows(self._gateways.settings, old):
            await self._gateways.go_by(gateways)
        else:
            await self._gateways.hand_over(gateways)
        if self._gateways.reach(old) and not knows(self._gateways.settings, old):
            await self._leave(old)

    async def _no_surge(self, new: Engine, settings: Settings) -> str | None:
        """Why an engine has to wait for the end of the one it replaces; None if it need not."""
        chosen = {served_name(model): model.engine.reload for model in settings.models if model.engine is not None}[
            serves(new)
        ]
        if chosen == "auto":
            return await asyncio.to_thread(_shortage, new)
        return None if chosen == "surge" else "the settings say"

    async def _start(self, engine: Engine) -> None:
        self.running.append(engine)
        if engine.on_demand:
            self._attendant.add(engine)
            return
        failure = await self._supervisor.add(engine)
        if failure is not None:
            self.running.remove(engine)
            raise FailedError(f"{engine.name} does not start. {failure}")

    async def _stop(self, engine: Engine) -> None:
        self.running.remove(engine)
        if engine.on_demand:
            if self._gateways.settings.tier.redis is not None:  # requests of other gateways are on it
                await self._leave(engine)
            await self._attendant.remove(engine)
        else:
            await self._supervisor.remove(engine.name)
            self._attendant.gone(engine)

    async def _leave(self, *engines: Engine) -> None:
        """Wait until no request is on these engines, or for as long as one may take."""
        within = self._gateways.settings.server.shutdown_timeout
        await asyncio.gather(*(self._attendant.leave(engine, within) for engine in engines))

    def _renew(self, engines: Sequence[Engine]) -> None:
        """Go by the new descriptions of engines that go on: they may have other places, and share what they have."""
        self.running = [next((new for new in engines if new == old), old) for old in self.running]
        for engine in self.running:
            if engine.on_demand:
                self._attendant.renew(engine)

    def _gave_up(self, engine: Engine) -> bool:
        """Whether an engine will not be started again. One on demand always may."""
        return not engine.on_demand and self._supervisor.gave_up(engine.name)

    def _note_end(self, event: SupervisorEvent) -> None:
        """Tell the process that decides why an engine ended, and when it is ready again."""
        engine = next((engine for engine in self.running if engine.name == event.program), None)
        match event:
            case Crashed(program, why) if engine is not None:
                self._ended[program] = EngineEnded(engine.spec.address, why.cause, why.remedy or None)
                self._tell(self._ended[program])
            case BecameReady(program) | Stopped(program) if (ended := self._ended.pop(program, None)) is not None:
                self._tell(EngineEnded(ended.address))

    def _tell(self, news: EngineNews | EngineEnded) -> None:
        """Tell the process that decides, or knows who does. One that starts is told all when it is up."""
        self._supervisor.tell(self._gateways.voice, as_line(news))


def _shortage(engine: Engine) -> str | None:
    """Why an engine has no room beside the running ones; None if it has."""
    return engine.spec.kind.shortage(engine.spec, os.environ, gpus(), free_bytes())
