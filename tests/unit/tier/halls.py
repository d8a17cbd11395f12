"""An owner's hall with real cores, and monitors that do as a test says."""

import asyncio
from types import SimpleNamespace

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    FRONT_BITS,
    Arrived,
    Capacity,
    Demand,
    EndpointId,
    RequestId,
)
from gateway.admission.policy import Policy
from gateway.endpoints.identity import Identity
from gateway.ops.merged import Family
from gateway.ops.state import Decided, UnknownEndpointError, UnknownModelError
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.tier.epoch import Epoch
from gateway.tier.fence import BEAT
from gateway.tier.frames import (
    VERSION,
    Declares,
    Hello,
    Ping,
    Recalled,
    Sent,
    from_owner,
)
from gateway.tier.hall import Hall
from tests.unit.ops.pictures.pictures import picture
from tests.unit.tier.lines import Other

HERE, THERE = EndpointId("here"), EndpointId("there")
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=1)


def identity(model="m"):
    return Identity((model,), (), None, 1000, "0.32.0")


class Monitor:
    """What a hall asks of a monitor, and what it was told."""

    def __init__(self):
        self.probed = asyncio.Event()
        self.serving = self.on_trial = self.keeps = self.drained = self.keyed = False
        self.requests = {}
        self.passing = set()
        self.told = []

    def dispatched(self, request, prompt_tokens, **how):
        self.requests[request] = how
        self.passing.update([request] if prompt_tokens is None else [])

    def progressed(self, requests):
        self.told.append(list(requests))

    def finished(self, request, *, delivering=False):
        if self.requests.pop(request, None) is not None:
            self.told.append((request, delivering))

    def drain(self):
        self.drained = True

    def failed(self, reason, *, aborted=False, dead=False):
        self.told.append((reason, aborted, dead))


class World:
    """An owner: its hall, its cores, and monitors that do as a test says."""

    def __init__(self, fronts=1, reign=None, **policy):
        self.policy = Policy(ttl=10.0, no_endpoint_ttl=5.0, ttft_target=None, **policy)
        self.hall = Hall(fronts, reign)
        self.monitors = {}
        self.made = []
        self.drained = []
        self.given = []
        self.awaited = {}
        self.cores = Cores(self.make, self.hall)
        for endpoint in (HERE, THERE):
            self.monitors[endpoint] = Monitor()
            self.cores.add(endpoint, None)
        self.digests = []
        state = SimpleNamespace(
            drain=self.drain,
            undrain=self.drain,
            give=self.give,
            decided=self.decided,
            figures=self.figures,
            picture=self.picture,
            take=self.digests.append,
        )
        state.awaited, state.left = self.awaited.__setitem__, lambda front: self.awaited.pop(front, None)
        self.hall.begin(self.cores, self.monitors, state)

    def make(self, model, root):
        self.made.append(
            Driver(AdmissionController(self.policy), asyncio.get_running_loop().time, self.hall.asker(model))
        )
        return self.made[-1]

    async def drain(self, endpoint):
        if endpoint not in self.monitors:
            raise UnknownEndpointError(endpoint)
        self.drained.append(endpoint)

    async def give(self, model, adapter, path):
        if model not in self.cores.drivers:
            raise UnknownModelError(model)
        self.given.append((model, adapter, path))

    async def figures(self, fronts):
        return [counted("pools", fronts)]

    async def decided(self):
        return Decided(endpoints=(), queues=())

    async def picture(self, after):
        return picture(at=after + 1)

    def up(self, endpoint=HERE, model="m", capacity=CAPACITY):
        monitor = self.monitors[endpoint]
        monitor.serving = True
        self.cores.up(endpoint, identity(model), capacity)
        monitor.probed.set()

    def down(self, endpoint=HERE):
        self.monitors[endpoint].serving = False
        self.cores.down(endpoint, "down")

    def remove(self, endpoint):
        del self.monitors[endpoint]
        self.cores.remove(endpoint)

    def connect(self, machine=None):
        return Other(self.hall.line(machine), from_owner)

    async def join(
        self, number=1, machine=None, *, skip=True, known=(), kept=(), epoch=None, declared=(), watched=(), waiting=()
    ):
        """A front that has said who it is; `skip` what it is told first."""
        front = self.connect(machine)
        front.say(Hello(VERSION, number, known, kept, epoch))
        front.say(Declares(list(declared), list(watched), list(waiting), last=True))
        if skip:
            await front.heard()
        return front

    def rate(self):
        """The measured drain rate of its first core."""
        return self.made[0].controller.snapshot(asyncio.get_running_loop().time()).drain_rate

    def load(self):
        """Requests in flight without those aborted, and waiting."""
        now = asyncio.get_running_loop().time()
        states = [driver.controller.snapshot(now) for driver in self.made]
        return sum(e.in_flight - e.aborting for s in states for e in s.endpoints), sum(s.queue.depth for s in states)


class Election:
    """What a hall tells the election."""

    epoch = Epoch(3, "a")

    def __init__(self, *, complete=False):
        self.epochs = []
        self.machines = []
        self.whole = set()
        self.complete = complete

    def heard(self, epoch):
        self.epochs.append(epoch)

    def connected(self, machines, whole):
        self.machines.append(set(machines))
        self.whole = set(whole)


def counted(name, value):
    return Family(name, "What.", "counter", [(f"{name}_total", (), value)])


async def beat(front, seconds):
    """Heartbeats for so long."""
    for _ in range(int(seconds / BEAT)):
        front.say(Ping())
        await asyncio.sleep(BEAT)


def arrival(number, front=1, **fields):
    return Arrived(RequestId((front << FRONT_BITS) + number), Demand((10,), 10), **fields)


def known(endpoint=HERE, *, drained=False):
    return Recalled(endpoint, "m", identity(), CAPACITY, drained)


def sent(request, endpoint=HERE):
    return Sent(Dispatch(request.request, endpoint))


ONE, TWO, THREE = (arrival(number) for number in (1, 2, 3))
