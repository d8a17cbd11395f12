import asyncio
from types import SimpleNamespace

import pytest

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    FRONT_BITS,
    Arrived,
    Back,
    Capacity,
    Declared,
    Demand,
    EndpointId,
    RequestId,
    Verdict,
    Warmth,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.endpoints.identity import Identity
from gateway.ops.merged import Family, packed
from gateway.ops.state import Decided, UnknownEndpointError
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.tier import carried, hall
from gateway.tier.epoch import Epoch
from gateway.tier.fence import BEAT, GIVEN_UP_AFTER
from gateway.tier.frames import (
    VERSION,
    Answer,
    Came,
    Declares,
    Down,
    Ended,
    Evacuate,
    Expire,
    Explain,
    Failed,
    GivenBack,
    Gone,
    Hello,
    Keep,
    Kept,
    Left,
    More,
    Moved,
    Ping,
    Pong,
    Recalled,
    Refused,
    Reigns,
    Report,
    Reported,
    Scrape,
    Sent,
    ShowState,
    Stepped,
    Surpassed,
    Unwatched,
    Up,
    Wanted,
    Watched,
    Welcome,
    from_owner,
    packed_warmth,
    warmth_of,
)
from gateway.tier.hall import DECLARED_WITHIN, Hall
from tests.unit.tier.lines import Other, turns

pytestmark = pytest.mark.usefixtures("hurried")

HERE, THERE = EndpointId("here"), EndpointId("there")
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=1)


def identity(model="m"):
    return Identity((model,), (), None, 1000, "0.32.0")


class Monitor:
    """What a hall asks of a monitor, and what it was told."""

    def __init__(self):
        self.probed = asyncio.Event()
        self.serving = self.on_trial = self.keeps = self.drained = False
        self.requests = {}
        self.told = []

    def dispatched(self, request, prompt_tokens, **how):
        self.requests[request] = how

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

    def __init__(self, expected=1, reign=None, **policy):
        self.policy = Policy(ttl=10.0, no_endpoint_ttl=5.0, ttft_target=None, **policy)
        self.hall = Hall(expected, reign)
        self.monitors = {}
        self.made = []
        self.drained = []
        self.cores = Cores(self.make, self.hall)
        for endpoint in (HERE, THERE):
            self.monitors[endpoint] = Monitor()
            self.cores.add(endpoint, None)
        state = SimpleNamespace(drain=self.drain, undrain=self.drain, decided=self.decided, figures=self.figures)
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

    async def figures(self, fronts):
        return [counted("pools", fronts)]

    async def decided(self):
        return Decided(endpoints=(), queues=())

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

    def __init__(self):
        self.epochs = []
        self.machines = []

    def heard(self, epoch):
        self.epochs.append(epoch)

    def connected(self, machines):
        self.machines.append(set(machines))


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


@pytest.fixture(autouse=True)
def nothing_to_keep(monkeypatch):
    """No messages about it but where a test is about them."""
    monkeypatch.setattr(hall, "WARM", 1e6)


@pytest.fixture
async def world():
    world = World()
    yield world
    world.hall.close()
    world.cores.close()


@pytest.fixture
async def tier():
    """An owner in a tier of several gateways."""
    tier = World(expected=None, reign=Election())
    tier.election = tier.hall._reign
    tier.up()
    await asyncio.sleep(DECLARED_WITHIN)
    yield tier
    tier.hall.close()
    tier.cores.close()


@pytest.fixture
async def front(world):
    world.up()
    return await world.join()


async def test_a_front_is_told_of_the_endpoints_and_then_welcomed(world):
    world.up()
    world.up(THERE)
    world.down(THERE)
    front = await world.join(skip=False)
    assert await front.heard() == [
        Up(HERE, "m", identity(), CAPACITY, False),
        Up(THERE, "m", identity(), CAPACITY, False),
        Down(THERE, keeps=False, drained=False),
        More(),
        Welcome(),
    ]


@pytest.mark.parametrize("message", [Hello(VERSION + 1, 1), Came("m", ONE)])
async def test_a_front_that_does_not_say_who_it_is_is_cut_off(world, message):
    front = world.connect()
    front.say(message, Came("m", ONE))
    await turns()
    assert front.aborted
    assert world.hall.fronts == 0


async def test_requests_are_sent_in_turn(world, front):
    front.say(Came("m", ONE), Came("m", TWO))
    assert await front.heard() == [sent(ONE)]
    front.say(Ended(ONE.request, Verdict.DONE, 3))
    assert await front.heard() == [sent(TWO)]
    front.say(Ended(TWO.request, Verdict.DONE, 3))
    assert world.load() == (0, 0)


async def test_a_model_that_nobody_serves_is_refused(world, front):
    front.say(Came("other", ONE))
    assert await front.heard() == [Refused(Reject(ONE.request, Outcome.NO_ENDPOINT, 1.0))]


async def test_a_refusal_of_the_core_is_told(world, front):
    front.say(Came("m", ONE), Came("m", TWO))
    await asyncio.sleep(11)
    assert [type(message) for message in await front.heard()] == [Sent, Refused]
    front.say(Left(TWO.request))
    assert world.load() == (1, 0)


async def test_who_leaves_while_it_waits_gives_up_its_place(world, front):
    front.say(Came("m", ONE), Came("m", TWO), Left(TWO.request))
    assert world.load() == (1, 0)


async def test_who_leaves_as_it_is_dispatched_holds_nothing_in_the_end(world, front):
    front.say(Came("m", ONE))
    front.say(Left(ONE.request))
    assert world.load() == (1, 0), "its front has yet to hear of the dispatch, and answers it"
    assert await front.heard() == [sent(ONE)]
    front.say(Ended(ONE.request, Verdict.DONE, 0))
    assert world.load() == (0, 0)


async def test_what_comes_back_is_sent_again(world, front):
    world.up(THERE)
    front.say(Came("m", ONE))
    (first,) = [m for m in await front.heard() if isinstance(m, Sent)]
    front.say(GivenBack("m", ONE, Back.FAILED))
    (second,) = await front.heard()
    assert {first.dispatch.endpoint, second.dispatch.endpoint} == {HERE, THERE}
    assert world.load() == (1, 0)
    front.say(GivenBack("m", ONE, Back.FAILED))
    (refused,) = await front.heard()
    assert refused.reject.outcome is Outcome.UPSTREAM_ERROR
    assert world.load() == (0, 0)


async def test_where_one_front_cannot_connect_others_go_on(world, front):
    other = await world.join(2)
    front.say(Came("m", ONE))
    assert await front.heard() == [sent(ONE)]
    front.say(GivenBack("m", ONE, Back.UNREACHED))
    other.say(Came("m", arrival(1, 2)))
    assert await other.heard() == [sent(arrival(1, 2))]
    assert await front.heard() == []


async def test_nothing_is_sent_before_all_fronts_have_declared():
    world = World(expected=2)
    world.up()
    first = await world.join(1, waiting=[("m", arrival(1, 1, waited=1.0))])
    assert world.load() == (0, 0)
    second = await world.join(2, waiting=[("m", arrival(1, 2, waited=2.0)), ("m", arrival(2, 2))])
    assert world.load() == (1, 2), "who has waited longest goes first"
    second.say(Ended(arrival(1, 2).request, Verdict.DONE, 3))
    assert await first.heard() == [sent(arrival(1, 1))]
    world.hall.close()
    world.cores.close()


async def test_what_comes_back_before_all_fronts_have_declared_waits_with_the_others():
    world = World(expected=2)
    world.up()
    first = await world.join(1, declared=[("m", Declared(ONE, HERE, 5))])
    first.say(GivenBack("m", arrival(1, waited=3.0, failures=1, avoid=HERE), Back.FAILED))
    assert world.load() == (0, 0)
    await world.join(2, declared=[("m", Declared(arrival(1, 2), HERE))])
    assert world.load() == (1, 1)
    assert await first.heard() == []
    world.hall.close()
    world.cores.close()


async def test_what_a_front_has_is_asked_for_in_parts():
    world = World(expected=1)
    world.up()
    front = world.connect()
    front.say(Hello(VERSION, 1))
    assert (await front.heard())[-1] == More()
    front.say(Declares([], [], [("m", ONE)], last=False))
    assert await front.heard() == [More()]
    assert world.load() == (0, 0)
    front.say(Declares([("m", Declared(TWO, HERE))], [], [], last=True))
    assert await front.heard() == [Welcome()]
    assert world.load() == (1, 1)
    world.hall.close()
    world.cores.close()


async def test_what_waits_for_an_owner_begins_over_several_turns(monkeypatch):
    monkeypatch.setattr(carried, "PART", 1)
    world = World(expected=2)
    world.up()
    await world.join(1, waiting=[("m", ONE), ("m", arrival(2, waited=1.0)), ("m", THREE)])
    late = world.connect()
    late.say(Hello(VERSION, 2))
    late.say(Declares([], [], [], last=True))
    assert world.load() == (1, 0)
    late.say(Came("m", arrival(1, 2)))
    await turns(1)
    assert world.load() == (1, 1)
    await turns(5)
    assert world.load() == (1, 3)
    assert [r.request for r in waiting(world)] == [ONE.request, THREE.request, arrival(1, 2).request]
    world.hall.close()
    world.cores.close()


def waiting(world):
    (driver,) = world.made
    return [record.arrival for record in sorted(driver.controller._queue, key=lambda record: record.order)]


async def test_a_flight_is_known_once_its_endpoint_is(world, front):
    watched = Watched(HERE, ONE.request, 10, True, False, True)
    flight = Declares([("m", Declared(ONE, HERE, 5))], [watched], [], last=True)
    for _ in range(2):
        front.say(flight)
        assert world.load() == (1, 0)
        assert world.monitors[HERE].requests.keys() == {ONE.request}
    assert await front.heard() == []


async def test_what_an_owner_knew_of_demand_outlives_it(monkeypatch):
    monkeypatch.setattr(hall, "WARM", 1.0)
    world = World(max_requests=1)
    world.up()
    front = await world.join(1)
    front.say(*[Came("m", arrival(number, key=number)) for number in (1, 2)])
    for number in range(3, 6):  # the engine ends one each second, and another waits
        await asyncio.sleep(1.0)
        front.say(Ended(arrival(number - 2).request, Verdict.DONE, 10), Came("m", arrival(number, key=number)))
    front.say(Came("m", arrival(6, key=6)))
    (refused,) = [m.reject for m in await front.heard() if isinstance(m, Refused)]
    assert refused.outcome is Outcome.QUEUE_FULL
    await asyncio.sleep(1.1)
    keep = [m for m in await front.heard() if isinstance(m, Keep)][-1]
    rate = world.rate()
    world.hall.close()
    world.cores.close()

    late = World(expected=2)
    late.up()
    first = await late.join(1, kept=[Kept("m", 0.5, keep.warmth), Kept("gone", 0.1, keep.warmth)])
    await late.join(2, kept=[Kept("m", 7.0, packed_warmth(Warmth()))])
    assert late.rate() == pytest.approx(rate, rel=0.2)
    (promise,) = warmth_of(keep.warmth).promises
    assert promise.key == 6
    now = asyncio.get_running_loop().time()
    found = late.made[0].controller._promises.find(6, now)
    assert found.due == pytest.approx(now - 0.5 + promise.due, abs=0.1)
    assert found.order < 0
    first.say(Came("m", arrival(7)))
    assert late.load() == (1, 0)
    late.hall.close()
    late.cores.close()


async def test_too_much_to_keep_is_not_told(monkeypatch):
    monkeypatch.setattr(hall, "MOST_KEPT", 0)
    monkeypatch.setattr(hall, "WARM", 0.1)
    world = World()
    world.up()
    front = await world.join(1)
    front.say(Came("m", ONE), Came("m", TWO))
    await asyncio.sleep(1.0)
    assert Keep not in {type(message) for message in await front.heard()}
    world.hall.close()
    world.cores.close()


async def test_an_owner_waits_for_fronts_for_so_long():
    world = World(expected=2)
    world.up()
    front = await world.join(1)
    front.say(Came("m", ONE))
    await asyncio.sleep(DECLARED_WITHIN - 0.1)
    assert await front.heard() == []
    await asyncio.sleep(0.2)
    assert await front.heard() == [sent(ONE)]
    world.hall.close()
    world.cores.close()


async def test_more_fronts_than_expected_are_waited_for_once_they_are_connected(world):
    world.up()
    late = world.connect()
    front = await world.join(1, waiting=[("m", ONE)])
    assert world.load() == (0, 0)
    late.say(Hello(VERSION, 2), Declares([("m", Declared(arrival(1, 2), HERE))], [], [], last=True))
    assert world.load() == (1, 1)
    late.say(Ended(arrival(1, 2).request, Verdict.DONE, 3))
    assert await front.heard() == [sent(ONE)]


async def test_who_leaves_before_an_owner_begins_is_forgotten():
    world = World(expected=2)
    world.up()
    front = await world.join(1, waiting=[("m", ONE), ("m", TWO)])
    front.say(Left(ONE.request))
    await asyncio.sleep(DECLARED_WITHIN + 0.1)
    assert await front.heard() == [sent(TWO)]
    assert world.load() == (1, 0)
    world.hall.close()
    world.cores.close()


async def test_a_front_lost_before_an_owner_begins_is_forgotten():
    world = World(expected=2)
    world.up()
    front = await world.join(1, waiting=[("m", ONE)])
    await front.end()
    await asyncio.sleep(DECLARED_WITHIN + 0.1)
    assert world.load() == (0, 0)
    world.cores.close()


async def test_what_is_declared_is_reserved_before_the_endpoint_was_probed(world):
    front = await world.join(known=[known()], declared=[("m", Declared(ONE, HERE, 5))], waiting=[("m", TWO)])
    assert world.load() == (1, 1)
    world.up()
    assert [m for m in await front.heard() if isinstance(m, Sent)] == []
    front.say(Ended(ONE.request, Verdict.DONE, 6))
    assert await front.heard() == [sent(TWO)]


@pytest.mark.parametrize("model", ["m", "other"])
async def test_what_was_on_an_endpoint_that_is_not_known_is_new_when_it_comes_back(world, model):
    world.up()
    gone = EndpointId("gone")
    front = await world.join(declared=[(model, Declared(ONE, gone)), (model, Declared(TWO, gone))])
    assert world.load() == (0, 0)
    front.say(Moved(((ONE.request, 4),)), Ended(TWO.request, Verdict.DONE, 3))
    front.say(GivenBack(model, arrival(1, failures=1, avoid=gone), Back.FAILED))
    (answer,) = await front.heard()
    assert isinstance(answer, Sent if model == "m" else Refused)
    assert world.load() == (int(model == "m"), 0)


async def test_what_a_lost_front_had_is_free(world, front):
    other = await world.join(2)
    front.say(Came("m", ONE), Watched(HERE, ONE.request, 10, True, False, False))
    front.say(Came("m", TWO))
    other.say(Came("m", arrival(1, 2)))
    await front.end()
    assert world.monitors[HERE].requests == {}
    assert world.load() == (0, 1)
    wanted = Wanted("m", {}, everything=True)
    assert await other.heard() == [wanted], "its blocks are held until a token shows that the engine made a step"
    await asyncio.sleep(3)
    assert await other.heard() == [sent(arrival(1, 2))]
    assert world.hall.fronts == 1


async def test_a_front_that_comes_back_before_it_was_missed_is_taken_over(world, front):
    front.say(Came("m", ONE), Came("m", TWO), Watched(HERE, ONE.request, 10, True, False, False))
    watched = Watched(HERE, ONE.request, 10, True, False, True)
    again = await world.join(
        1, declared=[("m", Declared(ONE, HERE, 3))], watched=[watched], waiting=[("m", TWO)], skip=False
    )
    await turns()
    assert front.aborted
    assert Welcome() in await again.heard()
    assert world.load() == (1, 1)
    assert world.hall.fronts == 1
    assert world.monitors[HERE].requests == {ONE.request: {"streams": True, "brought": False, "started": True}}


async def test_what_ended_while_a_front_had_no_connection_is_free(world, front):
    front.say(Came("m", ONE), Came("m", TWO), Came("m", THREE))
    again = await world.join(1, waiting=[("m", THREE)])
    await asyncio.sleep(3)  # the engine may still hold what was aborted
    assert await again.heard() == [sent(THREE)]
    assert world.load() == (1, 0)


async def test_news_for_a_lost_front_reach_nobody(world, front):
    other = await world.join(2)
    front.say(Came("m", ONE))
    await front.end()
    await other.heard()
    world.cores.expire([ONE.request])
    world.cores.evacuate(HERE)
    assert await other.heard() == [Evacuate(HERE)]


async def test_a_silent_request_is_ended_by_its_own_front(world, front):
    other = await world.join(2)
    world.cores.expire([ONE.request, arrival(1, 2).request, TWO.request])
    assert await front.heard() == [Expire([ONE.request, TWO.request])]
    assert await other.heard() == [Expire([arrival(1, 2).request])]


async def test_an_endpoint_is_told_of_until_it_is_gone(world, front):
    world.up(THERE)
    world.down(THERE)
    world.remove(THERE)
    assert await front.heard() == [Up(THERE, "m", identity(), CAPACITY, False), Down(THERE, False, False), Gone(THERE)]


async def test_an_endpoint_that_only_a_front_knows_is_gone(world):
    front = await world.join(known=[known(EndpointId("gone")), known()], skip=False)
    assert await front.heard() == [Gone(EndpointId("gone")), More(), Welcome()]


@pytest.mark.parametrize("late", [False, True])
async def test_an_endpoint_that_does_not_answer_the_new_owner_is_down(world, late):
    if late:
        await world.join(2)
        await asyncio.sleep(2 * DECLARED_WITHIN)
    front = await world.join(known=[known()])
    assert await front.heard() == []
    world.monitors[HERE].probed.set()
    assert await front.heard() == [Down(HERE, keeps=False, drained=False)]


async def test_what_the_operator_drained_stays_drained(world):
    front = await world.join(known=[known(drained=True), known(THERE)])
    assert [monitor.drained for monitor in world.monitors.values()] == [True, False]
    world.monitors[HERE].probed.set()
    assert await front.heard() == [Down(HERE, keeps=False, drained=True)]


async def test_an_endpoint_found_down_before_its_front_came_is_down(world):
    world.monitors[HERE].probed.set()
    front = await world.join(known=[known()], skip=False)
    assert Down(HERE, keeps=False, drained=False) in await front.heard()


async def test_progress_reaches_the_core_of_each_request(world, front):
    world.up(THERE, "n")
    front.say(Came("m", ONE), Came("n", TWO))
    await front.heard()
    front.say(Moved(((ONE.request, 5), (TWO.request, 20), (THREE.request, 1))))
    wanted = {m.model: m.news for m in await front.heard() if isinstance(m, Wanted)}
    assert {model: list(news) for model, news in wanted.items()} == {"m": [ONE.request], "n": [TWO.request]}


async def test_counts_are_wanted_from_whose_request_it_is(world, front):
    world.up(capacity=Capacity(max_model_len=1000, kv_blocks=100))
    other = await world.join(2)
    front.say(Came("m", ONE))
    other.say(Came("m", arrival(1, 2)))
    await front.heard(), await other.heard()
    other.say(Moved(((arrival(1, 2).request, 5),)))
    assert await front.heard() == []
    assert [type(message) for message in await other.heard()] == [Wanted]


async def test_what_requests_see_reaches_the_monitor(world, front):
    front.say(
        Watched(HERE, ONE.request, 10, streams=True, brought=True, started=False),
        Stepped(HERE, [ONE.request]),
        Failed(HERE, "it broke", aborted=False, dead=True),
        Unwatched(HERE, ONE.request, delivering=True),
    )
    assert world.monitors[HERE].told == [[ONE.request], ("it broke", False, True), (ONE.request, True)]


async def test_reports_of_what_is_not_known_change_nothing(world, front):
    nobody = EndpointId("nobody")
    front.say(
        Watched(nobody, ONE.request, 10, True, False, False),
        Stepped(nobody, [ONE.request]),
        Failed(nobody, "it broke", False, False),
        Unwatched(nobody, ONE.request, False),
        Stepped(HERE, [TWO.request]),
        Unwatched(HERE, TWO.request, False),
        Left(ONE.request),
        Ended(ONE.request, Verdict.DONE, 3),
        Moved(((ONE.request, 3),)),
    )
    assert world.load() == (0, 0)
    assert world.monitors[HERE].told == [[TWO.request]]
    seat = world.hall.seat_of(ONE.request)
    assert not seat.watched
    assert not seat.drivers


async def test_nothing_is_kept_of_a_request_that_outlived_its_endpoint(world, front):
    front.say(Watched(THERE, ONE.request, 10, True, False, False))
    world.up(THERE)
    world.remove(THERE)
    front.say(Unwatched(THERE, ONE.request, False))
    assert not world.hall.seat_of(ONE.request).watched


async def test_questions_are_answered(world, front):
    front.say(ShowState(1), ShowState(2, drain="here"), ShowState(3, undrain="nobody"))
    front.say(Explain(4, "m", ONE), Explain(5, "other", ONE))
    answers = {answer.number: answer.body for answer in await front.heard()}
    assert answers[1] == answers[2]
    tier = Decided.model_validate_json(answers[1]).tier
    assert (tier.role, tier.id, tier.epoch, tier.members) == ("owner", tier.owner, None, ("1",))
    assert answers[3] is answers[5] is None
    assert b'"verdict":"dispatch"' in answers[4]
    assert world.drained == ["here"]


async def test_no_sum_is_told_before_all_fronts_are_there():
    world = World(expected=2)
    front = await world.join(1)
    front.say(Scrape(1))
    assert await front.heard() == []
    other = await world.join(2)
    await turns()
    for one in (front, other):
        one.say(Reported(1, packed(())))
    await asyncio.sleep(0.5)
    assert Answer in {type(message) for message in await front.heard()}
    world.hall.close()
    world.cores.close()


async def test_an_owner_that_ends_cuts_everybody_off(world, front):
    silent = world.connect()
    front.say(Came("m", ONE), Came("m", TWO))
    world.hall.close()
    await turns()
    assert front.aborted
    assert silent.aborted
    assert world.hall.fronts == 0


async def test_an_owner_that_ended_begins_nothing():
    world = World(expected=2)
    front = await world.join(1, known=[known()], waiting=[("m", ONE)])
    world.hall.close()
    await asyncio.sleep(2 * DECLARED_WITHIN)
    assert world.load() == (0, 0)
    assert Sent not in {type(message) for message in await front.heard()}
    world.cores.close()


# In a tier of several gateways.


async def test_in_a_tier_the_epoch_is_said_before_anything_else(tier):
    front = await tier.join(skip=False)
    reigns, *further = await front.heard()
    assert reigns == Reigns((3, "a"))
    assert further[-1] == Welcome()
    again = await tier.join(skip=False)
    assert (await again.heard())[0] == reigns, "on each connection"


async def test_the_election_hears_of_every_epoch_that_a_front_followed(tier):
    front = await tier.join(1, epoch=(2, "z"))
    await tier.join(2)
    assert tier.election.epochs == [Epoch(2, "z")]
    front.say(Surpassed((5, "b")))
    assert tier.election.epochs == [Epoch(2, "z"), Epoch(5, "b")]


async def test_an_owner_that_hears_of_a_later_one_as_a_front_comes_ends_in_peace(tier):
    tier.election.heard = lambda epoch: (tier.cores.restrict(0.0), tier.hall.close())
    front = await tier.join(epoch=(5, "b"), waiting=[("m", ONE)])
    await turns()
    assert front.aborted
    assert tier.load()[0] == 0


async def test_the_election_hears_which_gateways_have_declared_all_they_have(tier):
    await tier.join(1)
    far = tier.connect("b:1")
    far.say(Hello(VERSION, 2))
    far.say(Declares([], [], [], last=False))
    assert set().union(*tier.election.machines) == set(), "neither this one, nor one that has more to say"
    other = await tier.join(3, "c:1")
    assert tier.election.machines[-1] == {"c:1"}
    far.say(Declares([], [], [], last=True))
    assert tier.election.machines[-1] == {"b:1", "c:1"}
    await far.end()
    await beat(other, GIVEN_UP_AFTER + 2 * BEAT)
    assert tier.election.machines[-1] == {"c:1"}


async def test_a_heartbeat_is_returned_with_its_number(tier):
    front = await tier.join()
    front.say(Ping(4), Ping(5))
    assert await front.heard() == [Pong(4), Pong(5)]


@pytest.mark.parametrize("machine", [None, "b:1"])
async def test_a_front_without_heartbeats_is_given_up_and_all_it_had_is_taken_out(tier, machine):
    front, other = await tier.join(1, machine), await tier.join(2)
    front.say(Came("m", ONE), Came("m", TWO))
    await turns()
    assert tier.load() == (1, 1)
    await beat(other, GIVEN_UP_AFTER - BEAT)
    assert tier.load() == (1, 1), "it is heard of again in time"
    front.say(Ping())
    await beat(other, GIVEN_UP_AFTER - BEAT)
    assert tier.load() == (1, 1)
    assert not front.aborted
    await front.heard()
    await beat(other, 3 * BEAT)
    assert tier.load() == (0, 0)
    assert front.aborted
    assert tier.hall.fronts == 1
    front.say(Ping(9))
    assert Pong(9) not in await front.heard(), "who was given up is never told to obey again"


async def test_what_a_lost_front_of_another_gateway_had_is_held_until_it_may_obey_nothing_more(tier):
    front, other = await tier.join(1, "b:1"), await tier.join(2)
    front.say(Came("m", ONE), Ping())
    await front.end()
    await beat(other, GIVEN_UP_AFTER - BEAT)
    assert tier.load() == (1, 0), "an engine may still run it"
    await beat(other, 3 * BEAT)
    assert tier.load() == (0, 0)
    assert tier.hall.fronts == 1


async def test_a_front_of_another_gateway_may_come_back_with_all_it_has(tier):
    front = await tier.join(1, "b:1")
    front.say(Came("m", ONE), Came("m", TWO))
    await front.end()
    await asyncio.sleep(GIVEN_UP_AFTER / 2)
    again = await tier.join(1, "b:1", declared=[("m", Declared(ONE, HERE, 3))], waiting=[("m", TWO)])
    assert tier.load() == (1, 1)
    await beat(again, 2 * GIVEN_UP_AFTER)
    assert tier.load() == (1, 1), "its earlier connection is forgotten"
    assert tier.hall.fronts == 1


async def test_each_gateway_is_told_its_own_figures_and_the_owners_those_of_the_pools(tier):
    fronts = {1: None, 2: "b:1", 3: "b:1"}
    said = {number: await tier.join(number, machine) for number, machine in fronts.items()}

    async def told(asks):
        said[asks].say(Scrape(7))
        for number, front in said.items():
            for message in await front.heard():
                if isinstance(message, Report):
                    assert fronts[number] == fronts[asks], "the others are not even asked"
                    front.say(Reported(message.number, packed([counted("c", 10**number)])))
        while not (answers := await said[asks].heard()):  # a thread writes the text
            pass
        (answer,) = answers
        lines = answer.body.decode().splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}

    assert await told(1) == {"c_total": 10, "pools_total": 1}
    assert await told(2) == await told(3) == {"c_total": 1100}


async def test_in_a_tier_the_state_names_the_epoch_and_all_fronts(tier):
    front = await tier.join(1)
    await tier.join(2, "b:1")
    front.say(ShowState(1))
    (answer,) = await front.heard()
    shown = Decided.model_validate_json(answer.body).tier
    assert (shown.owner, shown.epoch, shown.members) == ("a", 3, ("1", "2"))


async def test_an_owner_that_ended_says_nothing_of_fronts_that_are_the_next_ones_now(tier):
    await tier.join(1, "b:1")
    assert tier.election.machines == [{"b:1"}]
    tier.hall.close()
    await asyncio.sleep(2 * GIVEN_UP_AFTER)
    assert tier.election.machines == [{"b:1"}]
