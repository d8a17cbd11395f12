"""What holds in a tier of several machines whatever is lost, late, stopped or born again, whenever.

Everything that decides is real: the election, its campaign and its questions to Redis, the candidates, their reigns and
halls, the fronts' links and guides, the sealed channels between machines. The engines, the sockets, Redis and the time
are not (`tests/fakes/processes.py`).
"""

import asyncio
import functools
import itertools
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import exp, inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gateway.admission.commands import Command, Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    FRONT_BITS,
    Arrived,
    Back,
    Capacity,
    Declared,
    Demand,
    EndpointId,
    Event,
    Finished,
    Observed,
    RequestId,
    Returned,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.admission.snapshot import EndpointSnapshot
from gateway.admission.tuning import TUNING
from gateway.app.apart import Apart, FrontSpec
from gateway.app.candidate import Candidate
from gateway.app.parent import Parent
from gateway.config.settings import Settings
from gateway.endpoints.identity import Identity
from gateway.ops.pictures.digest import Digest
from gateway.pools.admission import RejectedError
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.pools.interface import Watch
from gateway.tier.epoch import BEFORE_ALL, Epoch
from gateway.tier.fence import OBEYED_WITHIN
from gateway.tier.frames import Evacuate, Expire, Refused, Sent
from gateway.tier.line import Line
from gateway.tier.owner_link import LOOK
from tests.fakes.monitor import Monitor
from tests.fakes.processes import Process, World
from tests.fakes.redis_client import FakeRedis

GAUGES = 3.0
"""Seconds between two readings of the engine's gauge."""
POLICY = Policy(ttl=10.0, no_endpoint_ttl=3.0, ttft_target=None, poll_interval=GAUGES)
ENDS_WITHIN = 2 * (POLICY.ttl + POLICY.no_endpoint_ttl)
"""Seconds after which nothing waits any more, once all is well."""
ENGINE = EndpointId("e:1")
PLACES = 6
"""Sequences that the engine runs at once."""
BLOCKS = 40
"""Of the engine's KV cache."""
CAPACITY = Capacity(max_model_len=1000, kv_blocks=BLOCKS, max_num_seqs=PLACES)
OVERDUE = (POLICY.no_endpoint_ttl + 2 * LOOK) * 1.1
"""Seconds for which a request may wait for an owner, by any clock."""
PROBED = 0.05
"""Seconds until an owner has probed the engine."""
DRIFT = 0.05
"""How much faster or slower than the world's a clock runs."""
KEY = tempfile.NamedTemporaryFile(prefix="kvgate-key-")  # noqa: SIM115  # as long as these tests run
KEY.write(b"0123456789abcdef" * 2)
KEY.flush()
LOST = "background work failed and is tried again"
MACHINES = [f"m{number}" for number in range(3)]


def settings_of(machine: str) -> Settings:
    return Settings.model_validate(
        {
            "models": [{"name": "m", "endpoints": [{"url": f"http://{ENGINE}"}]}],
            "health": {"interval": GAUGES},
            "admission": {"queue": {"no_endpoint_ttl": POLICY.no_endpoint_ttl}},
            "tier": {
                "redis": "redis://redis",
                "advertise": f"{machine}:8500",
                "key_file": KEY.name,
                "members": len(MACHINES),
            },
        }
    )


SETTINGS = {machine: settings_of(machine) for machine in MACHINES}


class Metrics:
    """Counts nothing."""

    def __init__(self, _version: str = "") -> None:
        pass

    def figures(self) -> list[Any]:
        return []


class Owner:
    """A reign's owner, with a real core. Its engine answers at once.

    Attributes:
        held: what has a reservation, by the events of the core.
        beyond: blocks of the whole engine that its gauge has shown, more than the account, in each reading that counts.
        worked: whether one before these counts, too: the engine worked then for nobody of ours.
        surely: whether it has shown what the account has, or more, in each of these.
        read_at: when it was read last, by the world's time.
    """

    poll_interval = GAUGES

    def __init__(
        self,
        tier: "WholeTier",
        _settings: Settings,
        _endpoints: object,
        follower: Any,
        *,
        clock: Callable[[], float],
        asker: Callable[[str], Any],
        before: Callable[[], None],
        **_: object,
    ) -> None:
        self.held: set[RequestId] = set()
        self.beyond: list[float] = []
        self.worked = False
        self.surely = True
        self.read_at = -inf
        self._was_busy = False
        self._tier = tier
        self._reading: asyncio.TimerHandle | None = None
        self.drivers: list[Driver] = []
        self._parts = clock, asker, before
        self.monitors = {ENGINE: Monitor(keeps=True)}
        self.cores = Cores(self._make, follower, before=before)
        self.cores.add(ENGINE, None)

    def _make(self, model: str, _root: str | None) -> Driver:
        clock, asker, before = self._parts
        self.drivers.append(Driver(AdmissionController(POLICY), clock, asker(model), self._happened, before=before))
        return self.drivers[-1]

    def start(self) -> None:
        asyncio.get_running_loop().call_later(PROBED, self._probe)

    def _probe(self) -> None:
        self.monitors[ENGINE].serving = True
        self.cores.up(ENGINE, Identity(("m",), (), None, 1000, "0.32.0"), CAPACITY)
        self.monitors[ENGINE].probed.set()
        self._read()

    def _read(self) -> None:
        """Read the gauge, and again after a while."""
        clock, *_ = self._parts
        now, gauge, ledger = self._tier.world.now, self._tier.gauge(), self.ledger
        if self.busy:
            self.beyond.append(max(0.0, gauge - ledger))
            self.surely = self.surely and gauge >= ledger
        else:  # it may be stuck: it counts if the engine has worked since the reading before, as it always has here
            self.worked = self.read_at > -inf
        self.read_at = now
        self.cores.observed(Observed(ENGINE, clock(), gauge / BLOCKS, len(self.held), 0, now * 100))
        self._reading = asyncio.get_running_loop().call_later(GAUGES, self._read)

    @property
    def _states(self) -> list[EndpointSnapshot]:
        return [state for driver in self.drivers for state in driver.controller.snapshot(0.0).endpoints]

    @property
    def ledger(self) -> float:
        """Blocks that the account has."""
        return sum((state.ledger_usage or 0.0) * (state.capacity.kv_blocks or 0) for state in self._states)

    @property
    def busy(self) -> bool:
        """Whether the account has anything. What was aborted stays in it for a while."""
        return bool(self.held) or any(state.aborting for state in self._states)

    def restrict(self, share: float) -> None:
        self.cores.restrict(share)

    def awaited(self, front: int, ages: Mapping[str, float]) -> None:
        """No engine here starts on demand."""

    def left(self, front: int) -> None:
        """As before."""

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self.cores.close()

    def _happened(self, event: Event, _now: float, commands: Sequence[Command]) -> None:
        """Every reservation is released once."""
        match event:
            case Declared(arrival):
                assert arrival.request not in self.held, "reserved twice"
                self.held.add(arrival.request)
            case Finished(request) | Returned(request):
                assert request in self.held, "released twice"
                self.held.remove(request)
        if self._was_busy and not self.busy:  # the core forgets what the gauge has shown, too, before it goes on
            del self.beyond[: -1 if isinstance(event, Observed) else None]
            self.worked, self.surely = False, True
        for command in commands:
            if isinstance(command, Dispatch):
                assert command.request not in self.held, "reserved twice"
                self.held.add(command.request)
        self._was_busy = self.busy
        flying = {request for driver in self.drivers for request in driver.controller._flights}
        assert flying == self.held


@dataclass
class Request:
    """One as its front knows it."""

    task: "asyncio.Task[None] | None" = None
    watch: Watch | None = None
    """While it is at the engine."""
    control: "asyncio.Future[Verdict | Back] | None" = None
    """Set to its end, or to why it comes back."""
    seen: int = 0
    since: float = 0.0
    """When it began to wait for an endpoint, or for another one."""


class Front(Process):
    """A front process and its requests. It is its own follower."""

    def __init__(self, tier: "WholeTier", machine: str, number: int, **clock: float) -> None:
        super().__init__(tier.world, machine, **clock)
        self.tier, self.number = tier, number
        self.made = itertools.count(1)
        self.requests: dict[RequestId, Request] = {}
        self.followed = BEFORE_ALL
        """The highest epoch so far."""
        self.ownerless_since = tier.world.now
        """Since when it goes on, or has no owner."""
        self.do(self.begin)

    def begin(self) -> None:
        self.apart = Apart(
            FrontSpec(self.number, Path(f"/nowhere/{self.machine}/owner"), b""),
            self,
            clock=self.clock,
            progressed=self.progressed,
            metrics=Metrics(),
            settings=lambda: SETTINGS[self.machine],
            templates=lambda: {None: None},
            digest=Digest,
            parent=Parent(),
        )
        self.watch = self.apart.watch(ENGINE)
        self.apart.start()

    def resume(self) -> None:
        if self.paused:  # while all are, nothing is looked at
            self.ownerless_since = self.world.now
        super().resume()

    def ask(self) -> None:
        number = RequestId((self.number << FRONT_BITS) + next(self.made))
        request = self.requests[number] = Request(since=self.world.now)
        arrival = Arrived(number, Demand((20,), 50))
        request.task = self.loop.create_task(self.serve(request, arrival))

    async def serve(self, request: Request, arrival: Arrived) -> None:
        """Its life, as in `gateway.relay.attempts`."""
        admission, number = self.apart.admission("m"), arrival.request
        held = False
        try:
            await admission.admit(arrival)
            while True:
                held, request.seen = True, 0
                self.tier.obeyed(self, number)
                request.control = self.loop.create_future()
                request.watch = self.watch
                self.watch.dispatched(number, 20)
                try:
                    how = await request.control
                finally:
                    self.watch.finished(number)
                    request.watch, request.since = None, self.world.now
                held = False
                if isinstance(how, Verdict):
                    admission.finish(number, how, request.seen or None)
                    return
                await admission.readmit(number, how)
        except RejectedError as error:
            if error.command.outcome is not Outcome.NO_ENDPOINT:  # its link says that, too
                self.tier.obeyed(self, number)
        finally:
            if held:
                admission.finish(number, Verdict.ABORTED)
            del self.requests[number]

    def progressed(self, requests: Collection[RequestId]) -> None:
        self.watch.progressed(requests)

    @property
    def flying(self) -> set[RequestId]:
        return {number for number, request in self.requests.items() if request.watch is not None}

    def end(self, number: RequestId, how: Verdict | Back) -> None:
        request = self.requests.get(number)
        if request is not None and request.watch is not None:
            assert request.control is not None
            if not request.control.done():
                request.control.set_result(how)

    def leave(self, number: RequestId) -> None:
        if (request := self.requests.get(number)) is not None and request.task is not None:
            request.task.cancel()

    def count(self, number: RequestId, tokens: int) -> None:
        request = self.requests.get(number)
        if request is not None and request.watch is not None:
            request.seen += tokens
            self.apart.admission("m").progress(number, request.seen)

    # The `Follower`.

    def up(self, *_: object) -> None:
        pass

    down = gone = up

    def evacuate(self, _endpoint: EndpointId) -> None:
        self.tier.obeyed(self, Evacuate)
        for number, request in self.requests.items():
            if not request.seen:
                self.end(number, Back.FAILED)

    def starts(self, endpoint: EndpointId, ready_in: float | None, *, failed: bool) -> None:
        del endpoint, ready_in, failed

    def expire(self, requests: Collection[RequestId]) -> None:
        self.tier.obeyed(self, Expire)
        for number in requests:
            self.end(number, Verdict.ABORTED)


class CandidateProcess(Process):
    """The process that may decide for all."""

    def __init__(self, world: World, machine: str, **clock: float) -> None:
        super().__init__(world, machine, **clock)
        self.candidate: Candidate
        self.running: asyncio.Task[None] | None = None
        self.do(self.begin)

    def begin(self) -> None:
        listening: Any = SimpleNamespace(getsockname=lambda: f"/nowhere/{self.machine}/owner")
        self.candidate = Candidate(SETTINGS[self.machine], listening, clock=self.clock)
        self.running = self.loop.create_task(self.candidate.start())

    def stop(self) -> None:
        self.running = self.loop.create_task(self.candidate.stop())

    @property
    def decides(self) -> bool:
        return hasattr(self, "candidate") and self.candidate._campaign.may_decide()

    @property
    def owner(self) -> Owner | None:
        reign = self.candidate._reign if hasattr(self, "candidate") else None
        return None if reign is None else reign._owner  # type: ignore[return-value]


class WholeTier(RuleBasedStateMachine):
    """Machines with a candidate and a front each, and a Redis that keeps its word."""

    forgets = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.after = self.look
        self.redis = FakeRedis(self.world)
        self.failed: list[str] = []
        self.drawn = itertools.count(1)
        self.clocks: dict[str, Mapping[str, float]] = {}
        self.candidates: dict[str, CandidateProcess | None] = {}
        self.fronts: dict[str, Front | None] = {}
        self.orders: dict[tuple[str, object], float] = {}
        """When an owner said something last."""
        self.declared: dict[Epoch, set[str]] = {}
        """The gateways that have declared all they have to an owner, ever."""
        self.known: dict[Epoch, dict[str, str]] = {}
        """Those that an owner knew of when its reign began: the machine of each. One that restarts is another."""
        self.began: dict[Epoch, float] = {}
        self.foreign = 0
        """Blocks of the engine that others hold, who come to it directly."""
        self.lag = 0.0
        """Seconds by which its gauge trails it."""
        self.used: list[tuple[float, int]] = [(-inf, 0)]
        """Since when so many of its blocks are in use."""
        self.stack = ExitStack()
        send = Line.send

        def sends(line: Line[Any], *messages: Any) -> None:
            self.said(messages)
            send(line, *messages)

        for where, what in {
            "gateway.app.reign.Owner": functools.partial(Owner, self),
            "gateway.app.reign.Metrics": Metrics,
            "gateway.app.candidate.read_named_files": lambda _: SimpleNamespace(endpoints={}, templates={None: None}),
            "gateway.tier.redis_lease.Redis": self.redis.client,
            "gateway.tier.line.Line.send": sends,
            "secrets.token_bytes": self.token,
            "secrets.token_hex": lambda size: self.token(size).hex(),
        }.items():
            self.stack.enter_context(patch(where, what))
        logging = structlog.get_config()
        structlog.configure(processors=[self.logged], cache_logger_on_first_use=False)
        self.stack.callback(lambda: structlog.configure(**logging))

    def token(self, size: int) -> bytes:
        """Ids in another order than births: it must not matter."""
        return (next(self.drawn) * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8).ljust(size, b"x")[:size]

    def logged(self, _logger: object, _name: str, line: Any) -> Any:
        if line["event"] == LOST:
            self.failed.append(repr(line))
        raise structlog.DropEvent

    # What is there.

    @initialize(
        machines=st.integers(2, len(MACHINES)),
        origins=st.lists(st.floats(0, 1e6), min_size=3, max_size=3),
        rates=st.lists(st.sampled_from([1.0, 1.0, 1.0 - DRIFT, 1.0 + DRIFT]), min_size=3, max_size=3),
    )
    def begin(self, *, machines: int, origins: list[float], rates: list[float]) -> None:
        for machine, origin, rate in zip(MACHINES[:machines], origins, rates, strict=False):
            self.clocks[machine] = {"origin": origin, "rate": rate}
            self.candidates[machine] = self.fronts[machine] = None
            self.bear(machine)
        self.world.run(3.0)
        self.check()

    def bear(self, machine: str) -> None:
        """The supervisor starts what has ended."""
        if self.candidates[machine] is None:
            self.candidates[machine] = CandidateProcess(self.world, machine, **self.clocks[machine])
        if self.fronts[machine] is None:
            self.fronts[machine] = Front(self, machine, next(self.drawn), **self.clocks[machine])

    @property
    def living(self) -> list[Front]:
        return [front for front in self.fronts.values() if front is not None]

    @property
    def standing(self) -> list[CandidateProcess]:
        return [candidate for candidate in self.candidates.values() if candidate is not None]

    def machine(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.candidates)))

    # What happens.

    @rule(seconds=st.sampled_from([0.05, 0.3, 0.5, 1.0, 1.3, 1.7, 2.5, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(data=st.data(), count=st.integers(1, 2 * PLACES), stops=st.sampled_from([False, False, True]))
    def requests_come(self, data: st.DataObject, count: int, *, stops: bool) -> None:
        """`stops`: their front hears no answer before it goes on."""
        front = self.fronts[self.machine(data)]
        if front is None or front.paused:
            return
        for _ in range(count):
            front.do(front.ask)
        front.turn()
        front.paused = stops
        self.world.settle()

    def drawn_request(self, data: st.DataObject) -> tuple[Front, RequestId]:
        return data.draw(
            st.sampled_from([(front, number) for front in self.living for number in sorted(front.requests)])
        )

    @precondition(lambda self: any(front.requests for front in self.living))
    @rule(data=st.data(), how=st.sampled_from([Verdict.DONE, Verdict.DONE, Verdict.ABORTED, *Back, "tokens", "leaves"]))
    def one_goes_on(self, data: st.DataObject, how: Any) -> None:
        front, number = self.drawn_request(data)
        match how:
            case "tokens":
                front.do(functools.partial(front.count, number, 7))
            case "leaves":
                front.do(functools.partial(front.leave, number))
            case _:
                front.do(functools.partial(front.end, number, how))
        self.world.settle()

    @rule(data=st.data())
    def a_candidate_is_stopped(self, data: st.DataObject) -> None:
        if (candidate := self.candidates[self.machine(data)]) is not None:
            candidate.pause()

    @precondition(lambda self: any(candidate.decides for candidate in self.standing))
    @rule(seconds=st.sampled_from([0.5, 1.3, 1.7, 2.2, 4.0]), expire=st.booleans())
    def an_owner_is_stopped_and_wakes_with_an_order(self, seconds: float, *, expire: bool) -> None:
        """Its monitors find every request silent."""
        (candidate, *_) = [candidate for candidate in self.standing if candidate.decides]
        candidate.pause()
        self.world.run(seconds)
        candidate.do(functools.partial(self.order, candidate, expire=expire))
        candidate.resume()
        self.world.settle()

    def order(self, candidate: CandidateProcess, *, expire: bool) -> None:
        if (owner := candidate.owner) is not None and expire:
            owner.cores.expire(set(owner.monitors[ENGINE].requests))
        elif owner is not None:
            owner.cores.evacuate(ENGINE)

    @rule(data=st.data())
    def a_front_is_stopped(self, data: st.DataObject) -> None:
        if (front := self.fronts[self.machine(data)]) is not None:
            front.pause()

    @precondition(lambda self: any(candidate.decides for candidate in self.standing))
    @rule()
    def the_owners_machine_is_stopped_under_load(self) -> None:
        """It says nothing of what it has in flight."""
        (owner, *_) = [candidate for candidate in self.standing if candidate.decides]
        for process in (owner, self.fronts[owner.machine]):
            if process is not None:
                process.pause()
        for front in self.living:
            for _ in range(PLACES):
                front.do(front.ask)
        self.world.run(4.0)

    @rule()
    def all_go_on(self) -> None:
        for process in self.world.processes:
            process.resume()

    @rule(data=st.data(), which=st.sampled_from(["candidate", "front", "machine"]))
    def one_is_killed(self, data: st.DataObject, which: str) -> None:
        machine = self.machine(data)
        if which != "front" and (candidate := self.candidates[machine]) is not None:
            candidate.kill()
            self.candidates[machine] = None
        if which != "candidate" and (front := self.fronts[machine]) is not None:
            front.kill()
            self.fronts[machine] = None

    @rule(data=st.data())
    def one_is_restarted_in_peace(self, data: st.DataObject) -> None:
        machine = self.machine(data)
        if (candidate := self.candidates[machine]) is not None and not candidate.paused:
            candidate.do(candidate.stop)
            self.world.run(0.5)
            candidate.kill()
            self.candidates[machine] = None
            self.bear(machine)

    @rule(data=st.data())
    def what_ended_is_started(self, data: st.DataObject) -> None:
        self.bear(self.machine(data))

    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.2, inf]))
    def a_way_changes(self, data: st.DataObject, seconds: float) -> None:
        ends = [*sorted(self.candidates), "redis"]
        one, other = data.draw(st.sampled_from([*itertools.combinations(ends, 2)]))
        self.world.set_way(one, other, seconds)

    @precondition(lambda self: self.world.wires)
    @rule(data=st.data(), keep=st.integers(0, 3))
    def a_connection_breaks(self, data: st.DataObject, keep: int) -> None:
        data.draw(st.sampled_from(self.world.wires)).cut(keep)

    @rule(blocks=st.sampled_from([0, 8, 20, 40]), lag=st.sampled_from([0.0, 0.2]))
    def others_come_and_go(self, blocks: int, lag: float) -> None:
        """Past the tier."""
        self.foreign, self.lag = blocks, lag
        self.world.settle()

    def gauge(self) -> int:
        """Blocks in use, as the engine shows them now."""
        return next(blocks for since, blocks in reversed(self.used) if since <= self.world.now - self.lag)

    def note_blocks(self) -> None:
        """Note what the engine holds."""
        flying = [front.requests[number] for front in self.living for number in front.flying]
        blocks = self.foreign + sum(-(-(20 + request.seen) // CAPACITY.block_size) for request in flying)
        if blocks != self.used[-1][1]:
            self.used.append((self.world.now, blocks))

    @rule(how=st.sampled_from(["stops", "is away", "is back"]))
    def redis_changes(self, how: str) -> None:
        match how:
            case "stops":
                self.redis.pause()
            case "is away":
                self.redis.away = True
            case "is back":
                self.redis.resume()
                self.redis.away = False

    # What must hold, always.

    def obeyed(self, front: Front, order: object) -> None:
        """A front does what an owner said."""
        epoch = front.apart._link._reigns
        if epoch is None or epoch != front.apart._allegiance.epoch:
            self.failed.append("an order of another owner than the one that is followed")
        elif self.world.now - self.orders[epoch.owner, order] > OBEYED_WITHIN * (1 + 2 * DRIFT):
            self.failed.append("an order that is old")

    def said(self, messages: Sequence[object]) -> None:
        """A candidate says something to a front."""
        speaker = self.world.current
        if not isinstance(speaker, CandidateProcess) or speaker.dead:
            return
        for message in messages:
            match message:
                case Sent(dispatch):
                    order: object = dispatch.request
                    self.within_its_share(speaker)
                case Refused(reject):
                    order = reject.request
                case Evacuate() | Expire():
                    order = type(message)
                case _:
                    continue
            assert speaker.decides, "an order of an owner that may not decide"
            self.orders[speaker.candidate._election.me, order] = self.world.now

    def within_its_share(self, speaker: CandidateProcess) -> None:
        """What is held with an owner that dispatches stays within what it may fill."""
        owner, view = speaker.owner, speaker.candidate._campaign.view
        assert owner is not None
        assert view.epoch is not None
        most = max(1, int(PLACES * view.share))
        assert len(owner.held) <= most
        self.within_the_gauge(owner, view.share)
        self.note(speaker)
        if self.world.now - self.began[view.epoch] < 2 * GAUGES * (1 - DRIFT) and view.standing.value == "owning":
            known = self.known[view.epoch]
            present = {known[name] for name in known.keys() & self.redis.kept.members.keys()}
            kept = len(present - self.declared[view.epoch] - {speaker.machine}) / len(MACHINES)
            assert len(owner.held) <= max(1, PLACES * (1 - kept) + 1e-9), "what others may still hold is not kept back"

    def within_the_gauge(self, owner: Owner, share: float) -> None:
        """Of the cache, too, and with what others hold, as far as the gauge has shown that again and again."""
        if len(owner.held) == 1 or not owner.surely:  # it fits an idle engine, or counts from before an end came late
            return
        part = int(BLOCKS * share)
        assert owner.ledger <= POLICY.kv_high * part + 1e-6, "more of the cache than its share"
        if owner.beyond and self.world.now - owner.read_at < 2 * GAUGES:
            # What an idle engine showed counts, too, and what came since takes its place as fast as the core smooths.
            taken = 1 - exp(-len(owner.beyond) / TUNING.smoothing_polls) if owner.worked else 1.0
            known = owner.ledger + min(owner.beyond) * taken
            assert known <= POLICY.kv_high * BLOCKS + 1e-6, "what the gauge has shown is not kept free"

    def note(self, candidate: CandidateProcess) -> None:
        """Note what an owner may know."""
        its = candidate.candidate
        epoch = its._campaign.view.epoch if candidate.decides else None
        if epoch is not None and epoch not in self.began:
            self.began[epoch] = self.world.now
            kept = its._campaign._election._kept
            members = {} if kept is None else kept.members
            self.known[epoch] = {name: member.address.partition(":")[0] for name, member in members.items()}
        if its._reign is not None and its._epoch is not None:
            declared = self.declared.setdefault(its._epoch, set())
            declared |= {s.machine.partition(":")[0] for s in its._reign.hall.seats if s.declared and s.machine}

    def look(self) -> None:
        """After each thing that any process did."""
        for process in self.world.processes:
            assert not process.errors, process.errors
        assert not self.failed, self.failed
        self.note_blocks()
        for candidate in self.standing:
            if hasattr(candidate, "candidate"):
                self.note(candidate)
                task = candidate.running
                assert task is None or not task.done() or task.exception() is None
        for front in self.living:
            if hasattr(front, "apart") and (epoch := front.apart._allegiance.epoch) is not None:
                assert epoch >= front.followed, "an epoch went back"
                front.followed = epoch
            self.waits_for_no_owner_for_ever(front)
        if not self.forgets:
            owners = [c for c in self.standing if c.decides and c.candidate._campaign.view.standing.value == "owning"]
            assert len(owners) <= 1, "two with a lease"

    def waits_for_no_owner_for_ever(self, front: Front) -> None:
        if front.paused or not hasattr(front, "apart") or front.apart._link.connected.is_set():
            front.ownerless_since = self.world.now
        for request in front.requests.values():
            waited = self.world.now - max(front.ownerless_since, request.since)
            assert request.watch is not None or waited < OVERDUE, "a request waits for ever"

    def check(self) -> None:
        """At rest one decides, and all know the same."""
        (owner,) = [candidate for candidate in self.standing if candidate.decides]
        epoch = owner.candidate._campaign.view.epoch
        its = owner.owner
        assert its is not None
        for front in self.living:
            assert front.apart._link.connected.is_set()
            assert front.apart._allegiance.epoch == epoch
        assert its.held == {number for front in self.living for number in front.flying}
        known = {number for driver in its.drivers for number in driver.controller._requests}
        assert known == {number for front in self.living for number in front.requests}
        seats = owner.candidate._reign.hall._seats if owner.candidate._reign is not None else {}
        assert seats.keys() == {front.number for front in self.living}
        assert {number for seat in seats.values() for number in seat.drivers} == known

    def teardown(self) -> None:
        """When all is well again, one decides, everything is answered, and nothing is left behind."""
        try:
            if self.candidates:
                self.finish()
        finally:
            for process in [*self.world.processes]:
                process.kill()
            self.stack.close()

    def finish(self) -> None:
        self.all_go_on()
        self.redis_changes("is back")
        for one, other in itertools.combinations([*self.candidates, "redis"], 2):
            self.world.set_way(one, other, 0.0)
        for machine in self.candidates:
            self.bear(machine)
        self.world.run(ENDS_WITHIN)
        self.check()
        for front in self.living:
            assert len(front.requests) == len(front.flying), "a request waits for ever"
            for number in front.flying:
                front.do(functools.partial(front.end, number, Verdict.DONE))
        self.world.run(1.0)
        self.check()
        for front in self.living:
            link = front.apart._link
            assert not front.requests
            assert not link._carried
            for admission in link._admissions.values():
                assert not admission._waiting
        for candidate in self.standing:
            if (owner := candidate.owner) is not None:
                assert not owner.held


class Forgetful(WholeTier):
    """With a Redis that is flushed, restarted without a disk, or goes back to what a replica had."""

    forgets = True

    @rule(how=st.sampled_from(["flushed", "restarted", "copied", "goes back"]))
    def redis_forgets(self, how: str) -> None:
        match how:
            case "flushed":
                self.redis.kept.forget()
            case "restarted":
                self.redis.restart()
            case "copied":
                self.copy = self.redis.kept.copy()
            case "goes back" if hasattr(self, "copy"):
                self.redis.kept.restore(self.copy)

    @precondition(lambda self: any(candidate.decides for candidate in self.standing))
    @rule(seconds=st.sampled_from([1.7, 2.2, 4.0]))
    def a_replica_takes_over_that_missed_an_election(self, seconds: float) -> None:
        before = self.redis.kept.copy()
        (candidate, *_) = [candidate for candidate in self.standing if candidate.decides]
        candidate.pause()
        self.world.run(seconds)
        self.redis.kept.restore(before)
        candidate.resume()
        self.world.settle()


SOME = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
TestWholeTier = WholeTier.TestCase
TestWholeTier.settings = SOME
TestForgetful = Forgetful.TestCase
TestForgetful.settings = SOME
