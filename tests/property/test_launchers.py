"""What holds of the engines that a gateway of a tier launches, whoever dies and whatever is late.

The parent's attendant, the owner's launchers and its demand are real; supervisor, engines and wires are not. A wire is
a queue for each direction, and a message arrives when a test says so.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady
from engine.program_lifecycle import Policy
from gateway.admission.events import ResidencyPhase
from gateway.app.engine_demand import LOOK, EngineDemand
from gateway.app.parent import END, RUN
from gateway.config.engine import OnDemand
from gateway.endpoints.health import State
from gateway.pools.launcher import EngineNews
from gateway.serve.on_demand_engines import Attendant
from gateway.tier.frames import Launch, Seems
from gateway.tier.launchers import Launchers
from gateway.tier.seat import Seat

MODELS = ("red", "blue", "green")
"""Each has one engine, with its name as its address. All have the same cards."""
NOBODY = "grey"
"""Another with these cards by the settings of the owners, which no parent launches."""
TAKES = 0.5
"""Seconds of a start."""


class Process:
    """An engine's process."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.interrupted = False
        self.fails = False


class Supervisor:
    """Starts a process when a test says so. Two at once do not fit."""

    def __init__(self, tier: "Tier") -> None:
        self._tier = tier
        self.processes: dict[str, Process] = {}
        self.attendant: Attendant

    async def add(self, engine: Any) -> Diagnosis | None:
        if self.processes:
            self._tier.failed.append(f"{engine.name} starts beside {[*self.processes]}")
        process = self.processes[engine.name] = Process()
        await process.started.wait()
        if process.fails or process.interrupted:
            del self.processes[engine.name]
            return Diagnosis("It does not start.")
        self.attendant.on_event(BecameReady(engine.name, TAKES))
        return None

    def interrupt(self, name: str) -> None:
        self.processes[name].interrupted = True
        self.processes[name].started.set()

    async def remove(self, name: str) -> None:
        if self._tier.on.get(name):
            self._tier.failed.append(f"what is on {name} is cut off")
        await asyncio.sleep(0)
        del self.processes[name]


class Front:
    """The one that the parent talks with. It remembers what the parent said last of each engine."""

    def __init__(self) -> None:
        self.from_parent: deque[EngineNews] = deque()
        self.to_parent: deque[tuple[str, str]] = deque()
        self.launches: dict[str, EngineNews] = {}
        self.seat: Seat | None = None
        self.to_owner: deque[EngineNews] = deque()
        self.from_owner: deque[Launch | Seems] = deque()


class Monitor:
    """Probes an engine at each look."""

    def __init__(self, tier: "Tier", name: str) -> None:
        self._tier, self._name = tier, name
        self.state = State.STARTING
        self.status = SimpleNamespace(reason="")
        self.passing, self.drained = 0, False

    @property
    def in_flight(self) -> int:
        return self._tier.on.get(self._name, 0)

    @property
    def serving(self) -> bool:
        if self.state is State.STARTING and self._tier.runs(self._name):
            self.state = State.UP
        return self.state is State.UP

    def retire(self) -> None:
        self.state = State.STOPPED

    def rouse(self) -> None:
        self.state = State.STARTING if self.state is State.STOPPED else self.state


class Owner:
    """One that decides."""

    def __init__(self, tier: "Tier", models: Sequence[str] = MODELS) -> None:
        self.launchers = Launchers(self._say)
        self._fronts: dict[Seat, Front] = {}
        cores: Any = SimpleNamespace(name=lambda name: name, drivers={}, driver_of=lambda _name: None)
        follower: Any = SimpleNamespace(starts=lambda *_, **__: None)
        more = (*models, NOBODY) if tier.guarded else models  # else a parent's news may be late, and nobody would know
        self.monitors = {name: Monitor(tier, name) for name in more}
        launched = {name: OnDemand(30.0, "card") for name in more}
        monitors: Any = self.monitors

        def carries(name: str) -> bool:
            return bool(tier.on.get(name))

        self.demand = EngineDemand(
            launched, cores, monitors, follower, parent=self.launchers, clock=lambda: tier.now, carries=carries
        )

    def _say(self, seat: Seat, message: Any) -> None:
        self._fronts[seat].from_owner.append(message)

    def seats(self, front: Front) -> None:
        front.seat = Seat("10.0.0.7:8500", 0.0)
        front.to_owner.clear()
        front.from_owner.clear()
        self._fronts[front.seat] = front
        front.to_owner.extend(front.launches.values())


class Tier(RuleBasedStateMachine):
    """A gateway that launches engines, and owners elsewhere, one after the other."""

    @initialize(guarded=st.booleans())
    def begin(self, *, guarded: bool) -> None:
        """`guarded`: the parent knows that they have one place. Else all is up to the owner."""
        self.guarded = guarded
        self.loop = asyncio.new_event_loop()
        self.now = 100.0
        self.failed: list[str] = []
        self.waits: dict[str, float] = {}
        """Since when requests wait for each engine."""
        self.on: dict[str, int] = {}
        """How many are on it."""
        self.do(self.bear)
        self.owner = Owner(self)
        self.connects()

    def do(self, what: Any) -> None:
        async def done() -> None:
            what()
            for _ in range(10):
                await asyncio.sleep(0)

        self.loop.run_until_complete(done())
        assert not self.failed, self.failed

    def attendant_tasks(self) -> list[Any]:
        return [held.following for held in self.attendant._held.values() if held.following is not None]

    def bear(self) -> None:
        """The gateway starts, with all its processes."""
        self.front = Front()
        self.supervisor: Any = Supervisor(self)
        self.attendant = Attendant(self.supervisor, self.tell, lambda engine: engine.place)
        self.supervisor.attendant = self.attendant
        for name in MODELS:
            engine: Any = SimpleNamespace(
                name=name,
                sleeps=False,
                history=None,
                place="card" if self.guarded else name,
                shares=False,
                policy=Policy(),
                spec=SimpleNamespace(address=name, host="127.0.0.1", port=0, gpus=()),
            )
            self.attendant.add(engine)
        self.front.from_parent.clear()  # nobody hears it before it is ready
        self.attendant.say_all()

    def tell(self, news: EngineNews) -> None:
        self.front.from_parent.append(news)

    def connects(self) -> None:
        if self.front.seat is None:
            self.owner.seats(self.front)

    def runs(self, name: str) -> bool:
        process = self.supervisor.processes.get(name)
        return process is not None and process.started.is_set()

    # What happens.

    @rule(model=st.sampled_from(MODELS))
    def a_request_waits(self, model: str) -> None:
        if model in self.owner.monitors:
            self.waits.setdefault(model, self.now)
        self.tell_waits()

    @rule(model=st.sampled_from(MODELS))
    def who_waits_leaves(self, model: str) -> None:
        self.waits.pop(model, None)
        self.tell_waits()

    def tell_waits(self) -> None:
        self.owner.demand.awaited(0, {model: self.now - since for model, since in self.waits.items()})

    @rule(model=st.sampled_from(MODELS))
    def one_on_an_engine_ends(self, model: str) -> None:
        self.on[model] = max(0, self.on.get(model, 0) - 1)

    @rule(turns=st.integers(1, 40))
    def time_passes(self, turns: int) -> None:
        for _ in range(turns):
            self.now += LOOK
            self.owner.demand.look()
            for model in [model for model in self.waits if self.owner.monitors[model].serving]:
                del self.waits[model]  # it is dispatched
                self.on[model] = self.on.get(model, 0) + 1
            self.tell_waits()

    @rule(way=st.sampled_from(["from_parent", "to_owner", "from_owner", "to_parent"]), count=st.integers(1, 4))
    def messages_arrive(self, way: str, count: int) -> None:
        for _ in range(min(count, len(getattr(self.front, way)))):
            getattr(self, f"_{way}")(getattr(self.front, way).popleft())

    @rule(rounds=st.integers(1, 12), starts=st.booleans(), ends=st.booleans())
    def all_goes_well(self, rounds: int, *, starts: bool, ends: bool) -> None:
        """For a while. `starts`: what starts is soon up; `ends`: so do the requests on an engine."""
        for _ in range(rounds):
            for way in ("from_parent", "to_owner", "from_owner", "to_parent"):
                self.messages_arrive(way, 9)
            if starts and self.supervisor.processes:
                self.a_start_ends(fails=False)
            for model in MODELS if ends else ():
                self.one_on_an_engine_ends(model)
            self.time_passes(10)

    def _from_parent(self, news: EngineNews) -> None:
        self.front.launches[news.address] = news
        if self.front.seat is not None:
            self.front.to_owner.append(news)

    def _to_owner(self, news: EngineNews) -> None:
        assert self.front.seat is not None
        self.owner.launchers.said(self.front.seat, news)

    def _from_owner(self, order: Launch | Seems) -> None:
        if isinstance(order, Seems):
            return
        if order.endpoint in self.front.launches:
            phase = ResidencyPhase.STARTING if order.runs else ResidencyPhase.LEAVING
            known = self.front.launches[order.endpoint]
            self.front.launches[order.endpoint] = msgspec.structs.replace(known, phase=phase)
        self.front.to_parent.append((RUN if order.runs else END, order.endpoint))

    def _to_parent(self, order: tuple[str, str]) -> None:
        self.do(lambda: self.attendant.obey(*order))

    @precondition(lambda self: self.supervisor.processes)
    @rule(fails=st.booleans())
    def a_start_ends(self, *, fails: bool) -> None:
        for process in [process for process in self.supervisor.processes.values() if not process.started.is_set()]:
            process.fails = fails
            self.do(process.started.set)

    @rule(forgets=st.booleans())
    def the_owner_dies(self, *, forgets: bool) -> None:
        """`forgets`: the settings of the next one name one model less, as in a rolling reload."""
        forgets &= self.guarded  # else nobody would know that it has the place of the others
        self.owner = Owner(self, MODELS[:-1] if forgets else MODELS)
        self.waits = {model: since for model, since in self.waits.items() if model in self.owner.monitors}
        self.front.seat = None
        self.connects()
        self.tell_waits()

    @rule()
    def the_connection_breaks(self) -> None:
        assert self.front.seat is not None
        seat, self.front.seat = self.front.seat, None
        self.owner.launchers.left(seat)
        self.connects()

    @rule()
    def the_front_dies(self) -> None:
        """With what was on its way. The parent talks with the next one, and obeys the dead one no more."""
        assert self.front.seat is not None
        self.owner.launchers.left(self.front.seat)
        self.front = Front()
        self.attendant.say_all()
        self.connects()

    @rule(arrives=st.booleans())
    def a_reload_has_another_front_talk(self, *, arrives: bool) -> None:
        """The one before stays connected for a while, and says what it knows; `arrives`: after the other has."""
        before, self.front = self.front, Front()
        self.attendant.say_all()
        self.connects()
        if arrives:
            self.messages_arrive("from_parent", 9)
            self.messages_arrive("to_owner", 9)
        assert before.seat is not None
        for news in [*before.to_owner, *before.launches.values()]:
            self.owner.launchers.said(before.seat, news)
        self.owner.launchers.left(before.seat)

    @rule(missed=st.booleans())
    def the_gateway_dies_with_its_engines(self, *, missed: bool) -> None:
        """`missed`: at once, and not only when the next one has begun to talk."""
        assert self.front.seat is not None
        before = self.front.seat
        if missed:
            self.owner.launchers.left(before)
        for task in self.attendant_tasks():
            task.cancel()
        self.attendant.close()
        self.on.clear()
        self.do(self.bear)
        self.connects()
        if not missed:
            self.messages_arrive("from_parent", 9)
            self.messages_arrive("to_owner", 9)
            self.owner.launchers.left(before)

    def teardown(self) -> None:
        """When all is well again, each engine that is waited for has its turn."""
        try:
            if hasattr(self, "loop"):
                self.finish()
        finally:
            if hasattr(self, "loop"):
                for task in asyncio.all_tasks(self.loop):
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0))
                self.attendant.close()
                self.loop.close()

    def finish(self) -> None:
        for model in MODELS:
            self.a_request_waits(model)
        self.serve_all()
        if self.guarded:
            self.the_owner_dies(forgets=False)
            self.a_request_waits(MODELS[-1])
            self.serve_all()
            self.the_owner_dies(forgets=True)
            self.a_request_waits(MODELS[0])
            self.all_goes_well(20, starts=True, ends=False)
            assert self.waits, "what is on an engine that the owner does not know is not cut off"
            self.serve_all()

    def serve_all(self) -> None:
        for _ in range(100):
            self.all_goes_well(1, starts=True, ends=True)
            if not self.waits:
                return
        raise AssertionError(f"a request waits for ever for {[*self.waits]}")


TestTier = Tier.TestCase
TestTier.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
