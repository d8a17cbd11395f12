"""What holds between fronts and their owner whatever is lost, whenever.

Everything is real but the sockets, the engines and the time. Each connection delivers in order, and as late as the test
likes; either side may notice its end long after the other.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission.controller import AdmissionController
from gateway.admission.events import FRONT_BITS, Arrived, Back, Capacity, Demand, EndpointId, RequestId, Verdict
from gateway.admission.policy import Policy
from gateway.app.parent import Parent
from gateway.endpoints.identity import Identity
from gateway.pools.admission import RejectedError
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.pools.interface import Watch
from gateway.tier import carried
from gateway.tier.carried import PART
from gateway.tier.hall import Hall
from gateway.tier.line import Line
from gateway.tier.owner_link import Link
from tests.fakes.monitor import Monitor

POLICY = Policy(ttl=10.0, no_endpoint_ttl=3.0, ttft_target=None)
ENDS_WITHIN = 2 * (POLICY.ttl + POLICY.no_endpoint_ttl)
"""Seconds after which nothing waits any more, under whatever owners."""
MODELS = {EndpointId("a"): "m", EndpointId("b"): "m", EndpointId("c"): "n"}
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=2)
EXPECTED = 2
"""Fronts that an owner waits for."""


class Loop(asyncio.SelectorEventLoop):
    """Where all wait, the time goes on to what is due next."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _loop, context: self.errors.append(context))
        select = self._selector.select  # type: ignore[attr-defined]

        def hurry(timeout: float | None) -> Any:
            assert timeout is not None, "nothing will ever happen"
            self.now += timeout + 1e-6  # a timer fires a moment late, as any does
            return select(0)

        self._selector.select = hurry  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now

    async def calm(self) -> None:
        """Run all that can run now."""
        await asyncio.sleep(0)
        while self._ready:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)


class End:
    """One end of a connection, as its protocol's transport."""

    def __init__(self, wire: "Wire", protocol: Line[Any]) -> None:
        self.wire = wire
        self.protocol = protocol
        self.closed = False
        self.coming: deque[bytes | None] = deque()
        """What was sent here and has not arrived; None: the connection ended."""

    def write(self, data: bytes) -> None:
        self.wire.send(self, data)

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self.wire.send(self, None)
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def kill(self) -> None:
        """Its process ends: it hears nothing any more."""
        if not self.closed:
            self.closed = True
            self.wire.send(self, None)

    def take(self, most: int) -> bool:
        """Let so many frames arrive; return whether any did."""
        for number in range(most):
            if not self.coming or self.closed:
                return number > 0
            data = self.coming.popleft()
            if data is None:
                self.closed = True
                self.protocol.connection_lost(None)
            else:
                self.protocol.data_received(data)
        return True


class Wire:
    """A connection of a front. Its owner's end is made when an owner accepts it."""

    def __init__(self, front: "Front", protocol: Line[Any], *, auto: Callable[[], bool]) -> None:
        self.front = front
        self.auto = auto
        self.early: list[bytes | None] = []
        self.at_front = End(self, protocol)
        self.at_owner: End | None = None
        protocol.connection_made(self.at_front)

    def accepted(self, protocol: Line[Any]) -> None:
        self.at_owner = End(self, protocol)
        protocol.connection_made(self.at_owner)
        self.at_owner.coming += self.early

    def send(self, end: End, data: bytes | None) -> None:
        other = self.at_owner if end is self.at_front else self.at_front
        if other is None:
            self.early.append(data)
        elif not (other.closed or (other.coming and other.coming[-1] is None)):
            other.coming.append(data)
            if self.auto():
                asyncio.get_running_loop().call_soon(other.take, 1)

    @property
    def ends(self) -> list[End]:
        return [self.at_front] if self.at_owner is None else [self.at_front, self.at_owner]


@dataclass
class Request:
    """One as its front knows it."""

    front: "Front"
    arrival: Arrived
    model: str
    task: "asyncio.Task[None] | None" = None
    endpoint: EndpointId | None = None
    watch: Watch | None = None
    """Of that endpoint, which may be gone meanwhile."""
    control: "asyncio.Future[Verdict | Back] | None" = None
    """Set to its end, or to why it comes back."""
    seen: int = 0
    """Tokens on this endpoint."""


class Front:
    """A front and the requests in it. It is its own follower."""

    def __init__(self, number: int, connect: Any) -> None:
        self.number = number
        self.made = 0
        self.blocked = False
        """Whether it cannot connect for now."""
        self.requests: dict[RequestId, Request] = {}
        self.healthy: dict[EndpointId, bool] = {}
        self.watches: dict[EndpointId, Watch] = {}
        self.link = Link(
            number,
            lambda factory: connect(self, factory),
            self,
            clock=asyncio.get_running_loop().time,
            progressed=self.progressed,
            patience=lambda: POLICY.no_endpoint_ttl,
            figures=bytes,
            parent=Parent(),
        )
        for endpoint in MODELS:
            self.configure(endpoint)
        self.running = asyncio.create_task(self.link.run())

    def configure(self, endpoint: EndpointId) -> None:
        if endpoint not in self.watches:
            self.watches[endpoint] = self.link.watch(endpoint)
            self.healthy[endpoint] = False

    def ask(self, model: str) -> None:
        self.made += 1
        arrival = Arrived(RequestId((self.number << FRONT_BITS) + self.made), Demand((20,), 50))
        request = self.requests[arrival.request] = Request(self, arrival, model)
        request.task = asyncio.create_task(self.serve(request))

    async def serve(self, request: Request) -> None:
        """Its life, as in `gateway.relay.attempts`."""
        admission, number = self.link.admission(request.model), request.arrival.request
        held = False
        try:
            dispatch = await admission.admit(request.arrival)
            while True:
                held, request.endpoint, request.seen = True, dispatch.endpoint, 0
                request.control = asyncio.get_running_loop().create_future()
                watch = request.watch = self.watches[dispatch.endpoint]
                watch.dispatched(number, 20)
                try:
                    how = await request.control
                finally:
                    watch.finished(number)
                held, request.endpoint = False, None
                if isinstance(how, Verdict):
                    admission.finish(number, how, request.seen or None)
                    return
                dispatch = await admission.readmit(number, how)
        except RejectedError:
            pass
        finally:
            if held:
                admission.finish(number, Verdict.ABORTED)
            del self.requests[number]

    def progressed(self, requests: Collection[RequestId]) -> None:
        for number in requests:
            if (request := self.requests.get(number)) is not None and request.watch is not None:
                request.watch.progressed([number])

    def in_flight(self) -> dict[RequestId, EndpointId]:
        return {number: r.endpoint for number, r in self.requests.items() if r.endpoint is not None}

    def waiting(self) -> set[RequestId]:
        return {number for number, request in self.requests.items() if request.endpoint is None}

    def die(self) -> None:
        self.running.cancel()
        for request in self.requests.values():
            assert request.task is not None
            request.task.cancel()
        self.link.close()

    # The `Follower`.

    def up(self, endpoint: EndpointId, model: str, identity: Identity) -> None:
        assert model == MODELS[endpoint]
        assert endpoint in self.healthy
        self.healthy[endpoint] = True

    def down(self, endpoint: EndpointId) -> None:
        assert endpoint in self.healthy
        self.healthy[endpoint] = False

    def gone(self, endpoint: EndpointId) -> None:
        del self.healthy[endpoint], self.watches[endpoint]

    def starts(self, endpoint: EndpointId, ready_in: float | None, *, failed: bool) -> None:
        del endpoint, ready_in, failed

    def evacuate(self, endpoint: EndpointId) -> None:
        for request in self.requests.values():
            if request.endpoint == endpoint and not request.seen:
                self.end(request, Back.FAILED)

    def expire(self, requests: Collection[RequestId]) -> None:
        for number in requests:
            if (request := self.requests.get(number)) is not None and request.endpoint is not None:
                self.end(request, Verdict.ABORTED)

    def end(self, request: Request, how: Verdict | Back) -> None:
        if request.control is not None and not request.control.done():
            request.control.set_result(how)


class Owner:
    """The deciding half, as in `OwnerProcess`."""

    def __init__(self, endpoints: Collection[EndpointId]) -> None:
        self.made: list[Driver] = []
        self.hall = Hall(EXPECTED)
        self.monitors: dict[EndpointId, Any] = {}
        self.strange: set[EndpointId] = set(MODELS) - set(endpoints)
        """Endpoints that it did not know at some time: requests on them may be unknown to it."""
        self.cores = Cores(self.make, self.hall)
        for endpoint in endpoints:
            self.add(endpoint)
        self.hall.begin(self.cores, self.monitors, SimpleNamespace(left=lambda _front: None))

    def make(self, model: str, _root: str | None) -> Driver:
        clock = asyncio.get_running_loop().time
        self.made.append(Driver(AdmissionController(POLICY), clock, self.hall.asker(model)))
        return self.made[-1]

    def add(self, endpoint: EndpointId) -> None:
        self.monitors[endpoint] = Monitor()
        self.cores.add(endpoint, None)

    def remove(self, endpoint: EndpointId) -> None:
        """Forget an endpoint, if none of our requests is on it."""
        driver = self.cores.driver_of(endpoint)
        if driver is None or not any(flight.endpoint.id == endpoint for flight in driver.controller._flights.values()):
            self.strange.add(endpoint)
            del self.monitors[endpoint]
            self.cores.remove(endpoint)

    def probe(self, endpoint: EndpointId, *, answers: bool) -> None:
        monitor = self.monitors[endpoint]
        if answers and not monitor.serving:
            monitor.serving = True
            self.strange.discard(endpoint)
            self.cores.up(endpoint, Identity((MODELS[endpoint],), (), None, 1000, "0.32.0"), CAPACITY)
        elif monitor.serving and not answers:
            monitor.serving = False
            self.cores.down(endpoint, "down")
            self.cores.evacuate(endpoint)
        monitor.probed.set()

    def in_flight(self) -> set[RequestId]:
        return {request for driver in self.made for request in driver.controller._flights}

    def known(self) -> set[RequestId]:
        return {request for driver in self.made for request in driver.controller._requests}


class Tier(RuleBasedStateMachine):
    """Random lives of owners, fronts, connections and requests."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.engines = dict.fromkeys(MODELS, True)
        self.configured = set(MODELS)
        self.fronts: list[Front] = []
        self.wires: list[Wire] = []
        self.owner: Owner | None = None
        self.numbers = 0
        self.auto = False
        self.queues = True

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            await work
            await self.loop.calm()

        self.loop.run_until_complete(whole())
        assert not self.loop.errors, self.loop.errors

    def do(self, work: Callable[[], object]) -> None:
        async def once() -> None:
            work()

        self.run(once())

    async def connect(self, front: Front, factory: Callable[[], Any]) -> None:
        if front.blocked or (self.owner is None and not self.queues):
            raise ConnectionRefusedError
        wire = Wire(front, factory(), auto=lambda: self.auto)
        self.wires.append(wire)
        if self.owner is not None:
            wire.accepted(self.owner.hall.line())

    # Who is there

    @initialize(fronts=st.integers(1, 3), queues=st.booleans(), part=st.sampled_from([1, PART]))
    def begin(self, *, fronts: int, queues: bool, part: int) -> None:
        """`queues`: connections wait while there is no owner, as in a socket that its parent keeps.

        `part`: at 1, each request is declared, and begins to wait, in a turn of its own.
        """
        carried.PART = part
        self.queues = queues
        for _ in range(fronts):
            self.join()
        self.succeed(probed=True)
        self.settle()

    @precondition(lambda self: len(self.fronts) < 3)
    @rule()
    def join(self) -> None:
        self.numbers += 1
        self.do(lambda: self.fronts.append(Front(self.numbers, self.connect)))

    @precondition(lambda self: self.owner is None)
    @rule(probed=st.booleans())
    def succeed(self, *, probed: bool) -> None:
        self.do(lambda: self.own(probed=probed))

    def own(self, *, probed: bool) -> None:
        owner = self.owner = Owner(self.configured)
        for wire in self.wires:
            if wire.at_owner is None:
                wire.accepted(owner.hall.line())
        for endpoint in self.configured if probed else ():
            owner.probe(endpoint, answers=self.engines[endpoint])

    @precondition(lambda self: self.owner is not None)
    @rule(arrive=st.integers(0, 3))
    def lose_owner(self, arrive: int) -> None:
        """The owner dies. Of what it sent each front, the first so many frames still arrive."""
        owner, self.owner = self.owner, None
        assert owner is not None
        for wire in self.wires:
            assert wire.at_owner is not None
            self.lose(wire.at_front, arrive)
            wire.at_owner.closed = True
        for driver in owner.made:
            driver.close()
        owner.hall._cores = None  # type: ignore[assignment]
        self.do(owner.hall.close)

    @precondition(lambda self: len(self.fronts) > 1)
    @rule(data=st.data(), arrive=st.integers(0, 3))
    def lose_front(self, data: st.DataObject, arrive: int) -> None:
        front = data.draw(st.sampled_from(self.fronts))
        self.fronts.remove(front)
        for wire in self.wires:
            if wire.front is front:
                self.lose_at_owner(wire, arrive)
                wire.at_front.closed = True
        self.do(front.die)

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), arrive=st.tuples(st.integers(0, 2), st.integers(0, 2)))
    def cut(self, data: st.DataObject, arrive: tuple[int, int]) -> None:
        """A connection breaks. Each end hears of it when the rest has arrived."""
        wire = data.draw(st.sampled_from(self.wires))
        self.lose(wire.at_front, arrive[0])
        self.lose_at_owner(wire, arrive[1])

    def lose_at_owner(self, wire: Wire, arrive: int) -> None:
        if wire.at_owner is None:
            wire.early = [*wire.early[:arrive], None]
        else:
            self.lose(wire.at_owner, arrive)

    def lose(self, end: End, arrive: int) -> None:
        if not end.closed:
            end.coming = deque([*list(end.coming)[:arrive], None])

    @rule(data=st.data())
    def block(self, data: st.DataObject) -> None:
        front = data.draw(st.sampled_from(self.fronts))
        front.blocked = not front.blocked

    # What happens to requests

    @rule(data=st.data(), model=st.sampled_from(["m", "m", "n"]))
    def arrive(self, data: st.DataObject, model: str) -> None:
        front = data.draw(st.sampled_from(self.fronts))
        self.do(lambda: front.ask(model))

    def all(self) -> list[Request]:
        return [request for front in self.fronts for request in front.requests.values()]

    @precondition(lambda self: self.all())
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.all())).task
        assert task is not None
        self.do(task.cancel)

    def flights(self) -> list[Request]:
        return [request for request in self.all() if request.endpoint is not None]

    @precondition(lambda self: self.flights())
    @rule(data=st.data(), tokens=st.integers(1, 20))
    def tokens(self, data: st.DataObject, tokens: int) -> None:
        request = data.draw(st.sampled_from(self.flights()))
        request.seen += tokens
        admission = request.front.link.admission(request.model)
        self.do(lambda: admission.progress(request.arrival.request, request.seen))

    @precondition(lambda self: self.flights())
    @rule(data=st.data(), how=st.sampled_from([Verdict.DONE, Verdict.DONE, Verdict.ABORTED, *Back]))
    def end(self, data: st.DataObject, how: Verdict | Back) -> None:
        request = data.draw(st.sampled_from(self.flights()))
        self.do(lambda: request.front.end(request, how))

    # What happens to endpoints

    @rule(endpoint=st.sampled_from(sorted(MODELS)), answers=st.booleans())
    def engine(self, *, endpoint: EndpointId, answers: bool) -> None:
        self.engines[endpoint] = answers

    @precondition(lambda self: self.owner is not None)
    @rule(endpoint=st.sampled_from(sorted(MODELS)))
    def probe(self, endpoint: EndpointId) -> None:
        owner = self.owner
        assert owner is not None
        if endpoint in owner.monitors:
            self.do(lambda: owner.probe(endpoint, answers=self.engines[endpoint]))

    @precondition(lambda self: self.owner is not None)
    @rule(endpoint=st.sampled_from(sorted(MODELS)), expire=st.booleans())
    def silence(self, *, endpoint: EndpointId, expire: bool) -> None:
        """An endpoint hangs, as the owner sees it: what is known to be on it is to leave."""
        owner = self.owner
        assert owner is not None
        if endpoint not in owner.monitors:
            return
        if expire:
            self.do(lambda: owner.cores.expire(owner.monitors[endpoint].requests))
        else:
            self.do(lambda: owner.cores.evacuate(endpoint))

    @rule(endpoint=st.sampled_from(sorted(MODELS)), told=st.booleans())
    def configure(self, *, endpoint: EndpointId, told: bool) -> None:
        """An endpoint is added or removed. `told`: the owner hears of it now, else only the next one."""
        adds = endpoint not in self.configured
        self.configured ^= {endpoint}
        if adds:
            for front in self.fronts:
                self.do(functools.partial(front.configure, endpoint))
        if self.owner is not None and told and adds != (endpoint in self.owner.monitors):
            self.do(functools.partial(self.owner.add if adds else self.owner.remove, endpoint))

    # What arrives, and when

    @precondition(lambda self: any(end.coming for wire in self.wires for end in wire.ends))
    @rule(data=st.data(), most=st.integers(1, 3))
    def deliver(self, data: st.DataObject, most: int) -> None:
        ends = [end for wire in self.wires for end in wire.ends if end.coming]
        end = data.draw(st.sampled_from(ends))
        self.do(lambda: end.take(most))
        self.tidy()

    @rule(seconds=st.sampled_from([0.02, 0.05, 0.3, 1.1, 3.1]), auto=st.booleans())
    def wait(self, seconds: float, *, auto: bool) -> None:
        """`auto`: messages arrive at once meanwhile."""

        async def pass_time() -> None:
            if auto:
                self.deliver_all()
            await asyncio.sleep(seconds)

        self.auto = auto
        self.run(pass_time())
        self.auto = False
        self.tidy()

    def deliver_all(self, order: int = 1) -> bool:
        return sum(end.take(1000) for wire in self.wires[::order] for end in wire.ends) > 0

    def tidy(self) -> None:
        self.wires = [wire for wire in self.wires if not all(end.closed for end in wire.ends)]

    @rule(order=st.sampled_from([1, -1]))
    def settle(self, order: int = 1) -> None:
        """Everything arrives, and every front that can connects. Order -1: first over the latest connections."""

        async def arrive() -> None:
            for _ in range(3):
                while self.deliver_all(order):
                    await self.loop.calm()
                await asyncio.sleep(0.03)
            while self.deliver_all(order):
                await self.loop.calm()

        self.run(arrive())
        self.tidy()
        self.check()

    # What must hold

    @invariant()
    def nothing_is_decided_before_the_fronts_have_declared(self) -> None:
        if (
            self.owner is not None
            and not self.owner.hall._opening.begun.is_set()
            and not self.owner.hall._opening._turns
        ):
            assert self.owner.known() == self.owner.in_flight()

    @invariant()
    def each_front_remembers_what_it_has(self) -> None:
        for front in self.fronts:
            there = {number: known.endpoint for number, known in front.link._carried.items()}
            assert there == {number: request.endpoint for number, request in front.requests.items()}
            watched = {request for watch in front.watches.values() for request in watch.watched}  # type: ignore[attr-defined]
            assert watched <= front.in_flight().keys()

    def check(self) -> None:
        """At rest the two sides know the same."""
        owner = self.owner
        if owner is None:
            assert not any(front.link.connected.is_set() for front in self.fronts)
            return
        here = [front for front in self.fronts if front.link.connected.is_set()]
        assert all(front in here or front.blocked for front in self.fronts)
        assert owner.hall._seats.keys() == {front.number for front in here}
        flying = {number: endpoint for front in here for number, endpoint in front.in_flight().items()}
        waiting = {number for front in here for number in front.waiting()}
        held, known = owner.in_flight(), owner.known()
        early = owner.hall._opening._early.keys()
        assert held <= flying.keys(), "a reservation of no request"
        assert all(flying[number] in owner.strange for number in flying.keys() - held), "a request without reservation"
        assert not early & known
        assert (known - held) | early == waiting
        seats = owner.hall._seats.values()
        assert {number for seat in seats for number in seat.drivers} == held | waiting
        assert {number for seat in seats for number in seat.sent} == held
        watched = {number: endpoint for seat in seats for number, endpoint in seat.watched.items()}
        assert watched.items() <= flying.items()
        watching = {r for front in here for r, q in front.requests.items() if q.watch is front.watches.get(q.endpoint)}
        assert {n for n, e in flying.items() if n in watching and e not in owner.strange} <= watched.keys()
        for endpoint, monitor in owner.monitors.items():
            assert monitor.requests == {number for number, on in watched.items() if on == endpoint}
            for front in here:
                assert not monitor.probed.is_set() or front.healthy.get(endpoint, monitor.serving) == monitor.serving
        for front in here:
            assert all(endpoint in owner.monitors or not on for endpoint, on in front.healthy.items())

    def teardown(self) -> None:
        """There is an owner in the end: everything is answered, ends, and leaves nothing behind."""
        try:
            self.finish()
        finally:
            self.stop()

    def finish(self) -> None:
        if not self.fronts:  # it never began
            return
        for front in self.fronts:
            front.blocked = False
        if self.owner is None:
            self.succeed(probed=True)
        self.settle()
        self.wait(ENDS_WITHIN, auto=True)
        self.settle()
        assert not any(front.waiting() for front in self.fronts), "a request waits for ever"
        for request in self.flights():
            self.do(functools.partial(request.front.end, request, Verdict.DONE))
        self.settle()
        assert not self.all()
        assert self.owner is not None
        assert not self.owner.known()
        for monitor in self.owner.monitors.values():
            assert not monitor.requests
        for seat in self.owner.hall._seats.values():
            assert not seat.drivers
            assert not seat.watched
        for front in self.fronts:
            assert not front.link._carried
            assert not [*front.link.questions]
            for admission in front.link._admissions.values():
                assert not admission._waiting
                counts = admission.counts
                assert not counts.moved | counts._untold | counts.next_reports

    def stop(self) -> None:
        carried.PART = PART
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(self.loop.calm())
        self.loop.close()


Tier.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
TestTier = Tier.TestCase
