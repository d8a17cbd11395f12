"""Processes, connections and time in memory: what the processes of several machines do is played in one thread.

Each process has an event loop with a clock of its own, and all that asyncio has of sockets there is a wire of this
world. A process that is paused runs nothing, while its peers write and its timers fall due: when it goes on, all of it
is there at once. A connection delivers in order, as late as its way takes; another one between the same two may be
faster. Nothing here waits: the time goes on to what is due next.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

ARRIVES = 1e-4
"""Seconds that anything takes at least."""
MOST_TURNS = 10_000
"""Turns of a loop without a moment of time: more, and something is asked again and again."""


class World:
    """The time of day, what listens where, and how long the ways between machines are."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self.current: Process | None = None
        """The one whose code runs."""
        self.wires: list[Wire] = []
        self.listening: dict[str, Listening] = {}
        self.ways: dict[frozenset[str], float] = {}
        """Seconds from one machine to another; infinite: nothing arrives."""
        self.after: Callable[[], None] = lambda: None
        """Called whenever a process has run."""

    def way(self, one: str, other: str) -> float:
        return ARRIVES if one == other else max(ARRIVES, self.ways.get(frozenset({one, other}), 0.0))

    def set_way(self, one: str, other: str, seconds: float) -> None:
        """What is on a way that was shut goes on."""
        self.ways[frozenset({one, other})] = seconds
        for wire in self.wires:
            for end in wire.ends:
                end.retime()

    def settle(self) -> float:
        """Have all that is due now done; the time at which more is."""
        for _ in range(MOST_TURNS):
            times = [(process.due, process) for process in self.processes]
            due = [process for at, process in times if at <= self.now]
            if not due:
                return min((at for at, _ in times), default=inf)
            for process in due:
                process.turn()
                self.after()
        raise AssertionError("it never comes to rest")

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while True:
            due = self.settle()
            if due > until:
                self.now = until
                return
            self.now = max(self.now, due)

    def connect(self, process: "Process", address: str, protocol: asyncio.Protocol) -> "End":
        listening = self.listening.get(address)
        if listening is None or self.way(process.machine, listening.machine) == inf:
            raise ConnectionRefusedError(address)
        wire = Wire(self, process, protocol, listening)
        self.wires = [wire for wire in self.wires if not wire.over]
        self.wires.append(wire)
        if listening.process is not None:
            listening.accept(wire)
        return wire.here


class Process:
    """One that lives until it is killed.

    Attributes:
        machine: where.
        clock: its monotonic clock shows `origin`, and runs at `rate`.
    """

    def __init__(self, world: World, machine: str, *, origin: float = 0.0, rate: float = 1.0) -> None:
        self.world, self.machine = world, machine
        self.origin, self.rate = origin, rate
        self.paused = self.dead = False
        self.inbox: list[tuple[float, int, Callable[[], object]]] = []
        self.errors: list[dict[str, Any]] = []
        self._order = itertools.count()
        self.loop = Loop(self)
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        world.processes.append(self)

    def clock(self) -> float:
        return self.origin + self.world.now * self.rate

    @property
    def due(self) -> float:
        """When it has something to do."""
        if self.paused or self.dead:
            return inf
        return min(self.loop.due, *[at for at, _, _ in self.inbox]) if self.inbox else self.loop.due

    def receive(self, at: float, what: Callable[[], object]) -> None:
        """Have something done when it has arrived."""
        if not self.dead:
            self.inbox.append((at, next(self._order), what))

    def do(self, what: Callable[[], object]) -> None:
        """Have something done by it: at once, or when it goes on."""
        self.receive(self.world.now, what)

    def turn(self) -> None:
        """Do all that is due."""
        arrived = sorted((entry for entry in self.inbox if entry[0] <= self.world.now), key=lambda entry: entry[:2])
        self.inbox = [entry for entry in self.inbox if entry[0] > self.world.now]
        before, self.world.current = self.world.current, self
        try:
            for _, _, what in arrived:
                self.loop.call_soon(what)
            self.loop.run_until_calm()
        finally:
            self.world.current = before

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def kill(self) -> None:
        """End it, wherever it is. Its connections are closed, and of what it still does nobody sees anything."""
        if self.dead:
            return
        self.dead = True
        for wire in self.world.wires:
            for end in wire.ends:
                if end.process is self:
                    end.shut()
        for listening in list(self.world.listening.values()):
            listening.leave(self)
        self.world.processes.remove(self)
        before, self.world.current = self.world.current, self
        try:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_calm()
        finally:
            self.world.current = before
            self.loop.close()


class Loop(asyncio.SelectorEventLoop):
    """The event loop of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        super().__init__()
        self._selector.select = lambda _timeout=None: []  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._process.clock()

    @property
    def due(self) -> float:
        """When it has something to do, in the time of the world."""
        if self._ready:  # type: ignore[attr-defined]
            return -inf
        timers = self._scheduled  # type: ignore[attr-defined]
        return (timers[0].when() - self._process.origin) / self._process.rate + 1e-9 if timers else inf

    def run_until_calm(self) -> None:
        """Without what `run_forever` does around each turn, which took as long as the turn."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(MOST_TURNS):
                self._run_once()  # type: ignore[attr-defined]
                if self.due > self._process.world.now:
                    return
        finally:
            asyncio._set_running_loop(None)
        raise AssertionError("it never comes to rest")

    async def create_unix_server(self, factory: Any, path: Any = None, *, sock: Any = None, **_: Any) -> Any:  # type: ignore[override]
        world, address = self._process.world, str(path) if sock is None else sock.getsockname()
        listening = world.listening.setdefault(address, Listening(world, address, self._process.machine))
        listening.kept = sock is not None
        return listening.serve(self._process, factory)

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        world, machine = self._process.world, self._process.machine
        address = f"{machine}:{port}"
        return world.listening.setdefault(address, Listening(world, address, machine)).serve(self._process, factory)

    async def create_unix_connection(self, factory: Any, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self._connect(factory, str(path))

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self._connect(factory, f"{host}:{port}")

    async def _connect(self, factory: Any, address: str) -> Any:
        await asyncio.sleep(0)
        protocol = factory()
        end = self._process.world.connect(self._process, address, protocol)
        protocol.connection_made(end)
        return end, protocol


@dataclass
class Listening:
    """A socket that listens. One that is `kept` takes connections while no process accepts them."""

    world: World
    address: str
    machine: str
    kept: bool = False
    process: Process | None = None
    factory: Callable[[], Any] | None = None

    def serve(self, process: Process, factory: Callable[[], Any]) -> "Listening":
        self.process, self.factory = process, factory
        for wire in [wire for wire in self.world.wires if wire.listening is self and wire.there is None]:
            self.accept(wire)
        return self

    def accept(self, wire: "Wire") -> None:
        assert self.process is not None
        assert self.factory is not None
        wire.accept(self.process, self.factory)

    def leave(self, process: Process) -> None:
        if self.process is process:
            self.process = None
            if not self.kept:
                del self.world.listening[self.address]

    def close(self) -> None:
        if self.process is self.world.current:
            self.leave(self.world.current)


class Wire:
    """A connection. The end there is made when its process accepts it."""

    def __init__(self, world: World, process: Process, protocol: Any, listening: Listening) -> None:
        self.world, self.listening = world, listening
        self.here = End(self, process, protocol)
        self.there: End | None = None
        self.early: list[bytes | None] = []
        """What was sent before that."""

    @property
    def ends(self) -> list["End"]:
        return [self.here] if self.there is None else [self.here, self.there]

    @property
    def over(self) -> bool:
        return self.there is not None and all(end.closed for end in self.ends)

    def accept(self, process: Process, factory: Callable[[], Any]) -> None:
        end = self.there = End(self, process, None)

        def begin() -> None:
            if not end.closed:
                end.protocol = factory()
                end.protocol.connection_made(end)

        end.coming.append((self.world.now + self.world.way(self.here.process.machine, process.machine), begin))
        end.process.receive(end.coming[-1][0], end.take)
        for data in self.early:
            self.send(self.here, data)

    def send(self, end: "End", data: bytes | None) -> None:
        other = self.there if end is self.here else self.here
        if other is None:
            self.early.append(data)
        else:
            other.come(data)

    def cut(self, keep: int) -> None:
        """It breaks: each end has the next few of what is on its way, and then hears of that."""
        if self.there is None:
            self.early = [*self.early[:keep], None]
        for end in self.ends:
            end.coming = deque(itertools.islice(end.coming, max(keep, 1 if end.protocol is None else 0)))
            end.come(None)


class End:
    """One end of a connection, as its protocol's transport."""

    def __init__(self, wire: Wire, process: Process, protocol: Any) -> None:
        self.wire, self.process, self.protocol = wire, process, protocol
        self.closed = False
        self.coming: deque[tuple[float, Callable[[], object]]] = deque()

    # What a protocol calls.

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.wire.send(self, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return (self.process.machine, 1) if name == "peername" else None

    def abort(self) -> None:
        if not self.closed:
            self.shut()
            if not self.process.dead:
                self.process.loop.call_soon(self.protocol.connection_lost, None)

    close = abort

    # What the world does.

    def shut(self) -> None:
        """It hears nothing any more, and the other end will hear of that."""
        if not self.closed:
            self.closed = True
            self.coming.clear()
            self.wire.send(self, None)

    def come(self, data: bytes | None) -> None:
        if self.closed:
            return
        way = self._way()
        last = max((at for at, _ in self.coming if at < inf), default=0.0)
        self.coming.append((max(last, self.wire.world.now + way), lambda: self._hear(data)))
        if way < inf:
            self.process.receive(self.coming[-1][0], self.take)

    def retime(self) -> None:
        """Let go on what was held up."""
        if self._way() < inf and any(at == inf for at, _ in self.coming):
            now = self.wire.world.now + self._way()
            self.coming = deque((now if at == inf else at, what) for at, what in self.coming)
            self.process.receive(now, self.take)

    def take(self) -> None:
        """Hear all that has arrived."""
        while not self.closed and self.coming and self.coming[0][0] <= self.wire.world.now:
            self.coming.popleft()[1]()

    def _way(self) -> float:
        other = self.wire.there if self is self.wire.here else self.wire.here
        machine = self.wire.listening.machine if other is None else other.process.machine
        return self.wire.world.way(self.process.machine, machine)

    def _hear(self, data: bytes | None) -> None:
        if data is not None:
            self.protocol.data_received(data)
        elif not self.closed:
            self.closed = True
            if self.protocol is not None:
                self.protocol.connection_lost(None)
