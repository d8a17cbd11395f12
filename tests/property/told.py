"""What an admission core is told to find out whether another one decides the same; needs nothing but the product.

    python -m tests.property.told

prints a digest of each run.
"""

from hashlib import sha256
from random import Random

from gateway.admission import controller
from gateway.admission.commands import Dispatch, Reject
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Back,
    Behind,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointUp,
    Finished,
    Observed,
    PolicyChanged,
    Progress,
    Returned,
    ShutdownStarted,
    Tick,
    Verdict,
)
from gateway.admission.policy import Band, Bounds, Policy
from gateway.simulation.contenders import Contender
from gateway.simulation.machine import Machine
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request

MACHINE = Machine(kv_tokens=6000, block_size=16)
POLICIES = {
    "default": Policy(),
    "gate": Policy(bounds=Bounds.HYSTERESIS, max_passes=0, ttft_target=None),
    "forecast": Policy(bounds=Bounds.FORECAST, weights={"b": 2.0}, bands={0: Band(ttft_target=2.0)}),
}


def crowd(requests=400):
    """More than the machine can do, of three flows, half of them with a common prefix."""
    random = Random(3)  # noqa: S311 - the same load every time
    return tuple(
        Request(
            arrival=number * 0.05,
            prompt=random.randint(150, 500),
            output=random.randint(5, 300),
            max_tokens=random.choice((100, 300, 1000)),
            shared=((random.randrange(2), 128),) if random.random() < 0.5 else (),
            flow=random.choice("abc"),
        )
        for number in range(requests)
    )


class Recorder:
    """A controller, and what it was told and said."""

    def __init__(self, policy):
        self.controller = AdmissionController(policy)
        self.heard = []

    def handle(self, event, now):
        commands = self.controller.handle(event, now)
        self.heard.append((event, now, list(commands)))
        return commands


def record(name):
    recorder = Recorder(POLICIES[name])
    simulate(crowd(), MACHINE, Contender(name, lambda *_: recorder))
    return recorder.heard


def digest(heard):
    return sha256(repr(heard).encode()).hexdigest()


CAPACITIES = (
    Capacity(600, 40),
    Capacity(2000, 200, 32, shares_prefix=False),
    Capacity(4000, 1000, max_num_seqs=30),
    Capacity(600, None, max_num_seqs=4),
)
PREFIXES = ((), (), ((32, 1), (64, 2)), ((32, 1), (96, 3)), ((64, 4),))


def policy(random):
    return Policy(
        bounds=random.choice(list(Bounds)),
        max_requests=random.choice((5, 50)),
        ttft_target=random.choice((None, 1.0, 5.0)),
        bands=random.choice(({}, {1: Band(ttft_target=1.0, reserved=0.3)})),
        weights={"a": 3.0},
        kv_shares=random.choice(({}, {"a": 0.4})),
    )


def inherited(random):
    """What an earlier core had in its queue and in flight."""
    arrivals = [
        Arrived(-waits, Demand((random.randint(1, 200),), 256), flow=random.choice("abc"), waited=0.5 * waits)
        for waits in range(8, 0, -1)
    ]
    declared = [Declared(arrival, "a", random.choice((0, 20, 200))) for arrival in arrivals[4:]]
    return [*declared, *arrivals[:4]]


def tumult(seed, steps=2000):  # noqa: C901, PLR0912, PLR0915 - a branch for each kind of event
    """Events of every kind at random, in an order that follows what the core decides; with all that it said.

    At first come requests that an earlier core had.
    """
    random = Random(seed)  # noqa: S311 - the same events every time
    controller = AdmissionController(policy(random))
    now, heard = 100.0, []
    before = inherited(random)
    waiting = {event.request: event for event in before if isinstance(event, Arrived)}
    flying = {event.arrival.request: event.arrival for event in before if isinstance(event, Declared)}
    seen = {event.arrival.request: event.generated for event in before if isinstance(event, Declared)}

    def tell(event):
        commands = controller.handle(event, now)
        heard.append((event, now, commands))
        for command in commands:
            if isinstance(command, Dispatch):
                flying[command.request] = waiting.pop(command.request)
                seen[command.request] = 0
            elif isinstance(command, Reject):
                waiting.pop(command.request)

    tell(EndpointUp("a", random.choice(CAPACITIES)))
    for event in before:
        tell(event)
    for number in range(steps):
        now += random.expovariate(50)
        if flying and number % 200 == 199:  # slow clients have the last of an engine that has no more to do
            for key in list(flying)[::2]:
                tell(Behind(key))
            for name in "abab":
                now += 0.6
                tell(Observed(name, now, 0.0, 0, 0, 10.0 * number))
        chance = random.random()
        if chance < 0.4:
            prefix = random.choice(PREFIXES)
            prompt = random.randint(100 if prefix else 1, 700)
            prompts = (prompt,) if prefix else (prompt, *[50] * random.choice((0, 0, 2)))
            waiting[number] = Arrived(
                number,
                Demand(
                    prompts,
                    random.choice((1, 16, 256, 2000)),
                    random.choice((1, 1, 1, 3)),
                    number % 3 * 500,
                    number % 4 * 500,
                ),
                band=random.choice((0, 0, 1, -5)),
                flow=random.choice("abc"),
                body_bytes=random.randint(0, 2000),
                streamed=random.random() < 0.8,
                ttft_target=random.choice((None, None, 0.5)),
                prefix=prefix,
                key=random.choice((0, 1, 2, 3, 4)),
            )
            tell(waiting[number])
        elif chance < 0.6:
            seen.update({key: seen[key] + random.choice((0, 1, 3, 20)) for key, one in flying.items() if one.streamed})
            tell(Progress(tuple((key, seen[key]) for key in flying)))
        elif chance < 0.88 and flying:
            key = random.choice(list(flying))
            arrival = flying.pop(key)
            if random.random() < 0.1:
                waiting[key] = arrival
                tell(Returned(key, random.choice(list(Back))))
            else:
                verdict = random.choice((Verdict.DONE, Verdict.DONE, Verdict.DONE, Verdict.ABORTED, Verdict.FAILED))
                tell(Finished(key, verdict, random.choice((None, seen[key], seen[key] + random.randrange(200)))))
        elif chance < 0.9 and waiting:
            key = random.choice(list(waiting))
            del waiting[key]
            tell(Cancelled(key))
        elif chance < 0.95:
            gauges = [random.choice(of) for of in ((None, 0.1, 0.8, 0.95), (0, 3, 8), (0, 0, 5), (None, 10.0 * number))]
            tell(Observed(random.choice("ab"), now - 0.02, *gauges))
        elif chance < 0.96:
            name = random.choice("ab")
            tell(random.choice((EndpointDown(name, "killed"), EndpointUp(name, random.choice(CAPACITIES)))))
        elif chance < 0.97:
            tell(PolicyChanged(policy(random)))
        else:
            tell(Tick())
    tell(ShutdownStarted())
    return heard


if __name__ == "__main__":
    print(controller.__file__)
    print(*(digest(tumult(seed)) for seed in range(20)), *(digest(record(name)) for name in POLICIES))
