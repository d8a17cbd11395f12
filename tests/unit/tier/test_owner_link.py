import asyncio

import pytest
import structlog

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import (
    FRONT_BITS,
    NOWHERE,
    Arrived,
    Back,
    Capacity,
    Demand,
    EndpointId,
    RequestId,
    ResidencyPhase,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.app.parent import Parent
from gateway.endpoints.identity import Identity
from gateway.ops.state import Decided
from gateway.pools.admission import RejectedError
from gateway.pools.launcher import EngineEnded, EngineNews
from gateway.tier import carried
from gateway.tier.epoch import Epoch
from gateway.tier.fence import BEAT, OBEYED_WITHIN, Allegiance
from gateway.tier.frames import (
    VERSION,
    Answer,
    Awaits,
    Came,
    Declares,
    Down,
    Ended,
    Evacuate,
    Expire,
    Failed,
    Fell,
    GivenBack,
    Gone,
    Hello,
    Keep,
    Lags,
    Launch,
    Launches,
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
    Seems,
    Sent,
    ShowState,
    Starts,
    Stepped,
    Surpassed,
    Unwatched,
    Up,
    Wanted,
    Watched,
    Welcome,
    from_front,
)
from gateway.tier.owner_link import PARTED_WITHIN, PING, RETRY, SILENT, Link
from tests.unit.tier.lines import Other, turns

pytestmark = pytest.mark.usefixtures("hurried")

HERE, THERE = EndpointId("here"), EndpointId("there")
IDENTITY = Identity(("m",), (), None, 1000, "0.32.0")
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100)
FIGURES = b"what it counted"
PATIENCE = 3.0
"""Seconds."""


class World:
    """A front's link, the owners it connects to, and what its follower was told."""

    def __init__(self, allegiance=None):
        self.reachable = True
        self.unreachable = False
        self.keys = set()
        self.counted = asyncio.Event()
        self.counted.set()
        self.told = []
        self.moved = []
        self.owner = None
        self.parent = Parent()
        self.made = 0
        self.clock = asyncio.get_running_loop().time
        self.link = Link(
            7,
            self.connect,
            self,
            clock=self.clock,
            progressed=self.moved.extend,
            patience=lambda: PATIENCE,
            unreachable=lambda: self.unreachable,
            keyed=lambda endpoint: endpoint in self.keys,
            figures=self.figures,
            allegiance=allegiance,
            parent=self.parent,
        )
        self.running = asyncio.create_task(self.link.run())

    async def figures(self):
        await self.counted.wait()
        return FIGURES

    async def connect(self, factory):
        if not self.reachable:
            raise ConnectionRefusedError
        self.owner = Other(factory(), from_front)

    async def welcome(self):
        """What the front says first, once it is connected and welcomed."""
        await asyncio.sleep(2 * RETRY)
        said = await self.owner.heard()
        self.owner.say(More())
        said += await self.owner.heard()
        self.owner.say(Welcome())
        return said

    async def lose(self, *, reachable=True):
        self.reachable = reachable
        await self.owner.end()

    def ask(self, model="m"):
        """The request's arrival, and its task."""
        self.made += 1
        arrival = Arrived(RequestId((7 << FRONT_BITS) + self.made), Demand((10,), 10))
        return arrival, asyncio.create_task(self.link.admission(model).admit(arrival))

    async def in_flight(self):
        arrival, task = self.ask()
        await turns()
        self.owner.say(Sent(Dispatch(arrival.request, HERE)))
        assert (await task).endpoint == HERE
        await self.owner.heard()
        return arrival

    # The follower.

    def up(self, *what):
        self.told.append(("up", *what))

    def down(self, *what):
        self.told.append(("down", *what))

    def starts(self, *what, failed):
        self.told.append(("starts", *what, failed))

    def gone(self, *what):
        self.told.append(("gone", *what))

    def evacuate(self, *what):
        self.told.append(("evacuate", *what))

    def expire(self, *what):
        self.told.append(("expire", *what))


@pytest.fixture
async def world():
    world = World()
    world.link.watch(HERE)
    yield world
    world.running.cancel()
    world.link.close()


NOTHING = [Hello(VERSION, 7, [], []), Declares([], [], [], last=True)]
"""What a front says first that knows of nothing."""


def up(endpoint=HERE, *, on_trial=False, keyed=False):
    return Up(endpoint, "m", IDENTITY, CAPACITY, on_trial, keyed)


async def test_the_first_message_says_who_it_is(world):
    assert await world.welcome() == NOTHING


async def test_an_owner_counts_only_once_it_has_answered(world):
    await turns()
    assert not world.link.connected.is_set()
    await world.welcome()
    assert world.link.connected.is_set()
    await world.lose(reachable=False)
    assert not world.link.connected.is_set()


async def test_a_request_is_asked_for_and_its_end_is_told(world):
    await world.welcome()
    arrival, task = world.ask()
    assert await world.owner.heard() == [Came("m", arrival)]
    world.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert await task == Dispatch(arrival.request, HERE)
    world.link.admission("m").finish(arrival.request, Verdict.DONE, 3)
    assert await world.owner.heard() == [Ended(arrival.request, Verdict.DONE, 3)]
    assert not world.link._carried


async def test_a_refusal_reaches_who_asked(world):
    await world.welcome()
    arrival, task = world.ask()
    await turns()
    world.owner.say(Refused(Reject(arrival.request, Outcome.QUEUE_FULL, 2.0)))
    with pytest.raises(RejectedError) as refused:
        await task
    assert refused.value.command.outcome is Outcome.QUEUE_FULL
    assert not world.link._carried


async def test_who_leaves_is_given_back_when_its_dispatch_was_under_way(world):
    await world.welcome()
    arrival, task = world.ask()
    await world.owner.heard()
    task.cancel()
    assert await world.owner.heard() == [Left(arrival.request)]
    world.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert await world.owner.heard() == [Ended(arrival.request, Verdict.UNSERVED, 0)]


async def test_who_leaves_in_the_turn_of_its_dispatch_is_given_back(world):
    await world.welcome()
    arrival, task = world.ask()
    await world.owner.heard()
    task.cancel()
    world.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert Ended(arrival.request, Verdict.UNSERVED, 0) in await world.owner.heard()
    assert not world.link._carried


async def test_a_dispatch_to_where_it_cannot_go_is_given_back(world):
    await world.welcome()
    arrival, task = world.ask()
    await world.owner.heard()
    world.owner.say(Sent(Dispatch(arrival.request, THERE)))
    (back,) = await world.owner.heard()
    assert (type(back), back.arrival.request, back.why) == (GivenBack, arrival.request, Back.UNREACHED)
    assert not task.done()
    world.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert (await task).endpoint == HERE


async def test_what_comes_back_says_all_that_an_owner_must_know(world):
    await world.welcome()
    arrival = await world.in_flight()
    await asyncio.sleep(1.0)
    again = asyncio.create_task(world.link.admission("m").readmit(arrival.request, Back.FAILED))
    *_, back = await world.owner.heard()
    assert (back.model, back.why) == ("m", Back.FAILED)
    assert (back.arrival.request, back.arrival.failures, back.arrival.avoid) == (arrival.request, 1, HERE)
    assert back.arrival.waited == pytest.approx(0.0, abs=0.1), "its time there was no wait for room"
    again.cancel()
    await turns()


async def test_an_endpoint_out_of_reach_has_not_failed(world):
    await world.welcome()
    arrival = await world.in_flight()
    again = asyncio.create_task(world.link.admission("m").readmit(arrival.request, Back.UNREACHED))
    (back,) = await world.owner.heard()
    assert (back.why, back.arrival.failures, back.arrival.avoid) == (Back.UNREACHED, 0, None)
    again.cancel()
    await turns()


async def test_the_next_owner_hears_of_everything(world):
    await world.welcome()
    world.owner.say(up())
    flying = await world.in_flight()
    world.link.watch(HERE).dispatched(flying.request, 10)
    world.link.admission("m").first_tokens(flying.request, 4)
    failed = await world.in_flight()
    waiting, _ = world.ask()
    await world.lose(reachable=False)
    asyncio.create_task(world.link.admission("m").readmit(failed.request, Back.FAILED))  # noqa: RUF006
    since = world.clock()
    await asyncio.sleep(1.0)
    world.reachable = True
    hello, part = await world.welcome()
    assert hello.endpoints == [Recalled(HERE, "m", IDENTITY, CAPACITY, drained=False)]
    ((_, declared),) = part.flights
    assert (declared.arrival.request, declared.endpoint, declared.generated) == (flying.request, HERE, 4)
    assert declared.arrival.waited == pytest.approx(world.clock() - since, abs=0.1), "its deadline counts from there"
    assert part.watched == [Watched(HERE, flying.request, 10, streams=True, evacuated=False, started=False)]
    told = {arrival.request: arrival for _, arrival in part.waiting}
    assert told.keys() == {waiting.request, failed.request}
    assert (told[failed.request].failures, told[failed.request].avoid) == (1, HERE)
    assert told[waiting.request].waited == pytest.approx(world.clock() - since, abs=0.1)


async def test_what_is_relayed_without_a_place_is_declared_to_the_next_owner_and_given_back(world):
    await world.welcome()
    arrival = Arrived(RequestId((7 << FRONT_BITS) + 1), Demand((0,), 10), relayed=True)
    admission = world.link.admission("m")
    task = asyncio.create_task(admission.admit(arrival))
    assert await world.owner.heard() == [Came("m", arrival)]
    world.owner.say(Sent(Dispatch(arrival.request, NOWHERE)))
    assert (await task).endpoint == NOWHERE
    await world.lose()
    _, part = await world.welcome()
    ((model, declared),) = part.flights
    assert (model, declared.endpoint, declared.arrival.relayed) == ("m", NOWHERE, True)
    admission.finish(arrival.request, Verdict.UNSERVED, 0)
    assert await world.owner.heard() == [Ended(arrival.request, Verdict.UNSERVED, 0)]
    assert not world.link._carried


async def test_what_comes_while_no_owner_lives_is_said_to_be_charged_by_none(world):
    before, _ = world.ask()
    await world.welcome()
    charged, _ = world.ask()
    await turns()
    await world.lose(reachable=False)
    await asyncio.sleep(0.1)
    after, _ = world.ask()
    await asyncio.sleep(0.5)
    world.reachable = True
    _, part = await world.welcome()
    told = {arrival.request: arrival.charged for _, arrival in part.waiting}
    assert told == {before.request: True, charged.request: True, after.request: False}
    silent, _ = world.ask()
    await asyncio.sleep(PING + 0.1)  # it is stopped: its connection stays
    late, _ = world.ask()
    await turns()
    await world.lose()
    _, part = await world.welcome()
    told = {arrival.request: arrival.charged for _, arrival in part.waiting}
    assert (told[after.request], told[silent.request], told[late.request]) == (True, True, False)


async def test_what_has_yet_to_be_declared_is_not_told_otherwise(world, monkeypatch):
    monkeypatch.setattr(carried, "PART", 1)
    await world.welcome()
    flying, back, ended = await world.in_flight(), await world.in_flight(), await world.in_flight()
    await world.lose()
    await asyncio.sleep(2 * RETRY)
    await world.owner.heard()
    world.owner.say(More())
    (first,) = await world.owner.heard()
    assert [declared.arrival.request for _, declared in first.flights] == [flying.request]
    assert not first.last
    again = asyncio.create_task(world.link.admission("m").readmit(back.request, Back.FAILED))
    world.link.admission("m").finish(ended.request, Verdict.DONE, 3)
    assert await world.owner.heard() == [Ended(ended.request, Verdict.DONE, 3)]
    world.owner.say(More())
    (second,) = await world.owner.heard()
    assert not second.flights
    ((_, arrival),) = second.waiting
    assert (arrival.request, arrival.failures) == (back.request, 1)
    world.owner.say(More())
    assert await world.owner.heard() == [Declares([], [], [], last=True)]
    again.cancel()
    await turns()


async def test_what_is_on_an_endpoint_that_was_gone_is_declared_when_it_is_back(world):
    await world.welcome()
    world.owner.say(up())
    arrival = await world.in_flight()
    world.link.watch(HERE).dispatched(arrival.request, 10)
    await world.owner.heard()
    world.owner.say(Gone(HERE))
    world.link.watch(HERE)
    world.owner.say(up())
    (part,) = await world.owner.heard()
    assert [declared.arrival.request for _, declared in part.flights] == [arrival.request]
    assert [watched.request for watched in part.watched] == [arrival.request]
    world.owner.say(up(on_trial=True))
    assert await world.owner.heard() == []


async def test_nobody_waits_for_an_owner_for_ever(world):
    await world.welcome()
    _, task = world.ask()
    for _ in range(4):
        await asyncio.sleep(PATIENCE / 2)
        world.owner.say(Pong())
    assert not task.done(), "there is an owner: it decides"
    await world.lose(reachable=False)
    await asyncio.sleep(PATIENCE - 0.5)
    assert not task.done()
    with pytest.raises(RejectedError) as refused:
        await task
    assert refused.value.command.outcome is Outcome.NO_ENDPOINT
    assert not world.link._carried


async def test_who_comes_while_an_owner_lives_that_cannot_be_reached_is_refused_at_once(world):
    await world.welcome()
    await world.lose(reachable=False)
    waits, waiting = world.ask()
    await turns()
    world.unreachable = True
    _, refused = world.ask()
    await turns()
    assert refused.done()
    assert (refused.exception().command.outcome, refused.exception().command.retry_after) == (Outcome.NO_ENDPOINT, 1.0)
    await asyncio.sleep(PATIENCE / 2)
    assert not waiting.done(), "its time is not over"
    assert list(world.link._carried) == [waits.request]
    world.reachable = True
    await world.welcome()
    _, asking = world.ask()
    await turns()
    assert not asking.done(), "now it is reached"
    asking.cancel()
    waiting.cancel()
    await turns()


async def test_an_owner_that_says_nothing_any_more_is_given_up(world):
    await world.welcome()
    _, task = world.ask()
    await asyncio.sleep(PING * 1.5)
    assert Ping() in await world.owner.heard()
    before, world.reachable = world.owner, False
    await asyncio.sleep(SILENT + PING)
    assert before.aborted
    assert not world.link.connected.is_set()
    with pytest.raises(RejectedError):
        await task


async def test_an_owner_that_has_yet_to_answer_hears_that_who_waited_is_gone(world):
    await turns()
    arrival, task = world.ask()
    with pytest.raises(RejectedError):
        await task
    assert (await world.owner.heard())[-2:] == [Came("m", arrival), Left(arrival.request)]


async def test_what_is_in_flight_outlasts_any_wait_for_an_owner(world):
    await world.welcome()
    arrival = await world.in_flight()
    await world.lose(reachable=False)
    await asyncio.sleep(3 * PATIENCE)
    assert arrival.request in world.link._carried
    world.link.admission("m").finish(arrival.request, Verdict.DONE, 3)
    assert not world.link._carried
    world.reachable = True
    assert await world.welcome() == NOTHING


async def test_counts_wanted_of_what_has_ended_are_not_kept(world):
    await world.welcome()
    ended, flying = await world.in_flight(), await world.in_flight()
    for arrival in (ended, flying):
        world.link.admission("m").first_tokens(arrival.request, 4)
    await asyncio.sleep(0.1)
    world.link.admission("m").finish(ended.request, Verdict.DONE, 3)
    waiting, _ = world.ask()
    await turns()
    world.owner.say(Wanted("m", dict.fromkeys((ended.request, flying.request, waiting.request), 16.0), False))
    counts = world.link.admission("m").counts
    assert counts.next_reports == {flying.request: 16.0}
    world.owner.say(Wanted("m", {}, everything=True))
    assert counts.everything


async def test_progress_is_told_and_remembered(world):
    await world.welcome()
    arrival = await world.in_flight()
    world.link.admission("m").first_tokens(arrival.request, 4)
    await asyncio.sleep(0.1)
    assert await world.owner.heard() == [Moved("m", ((arrival.request, 4),))]
    assert world.moved == [arrival.request]
    await world.lose()
    _, part = await world.welcome()
    assert part.flights[0][1].generated == 4


async def test_a_client_that_is_behind_is_told_of_to_the_next_owner_too(world):
    await world.welcome()
    arrival = await world.in_flight()
    world.link.admission("m").behind(arrival.request)
    assert await world.owner.heard() == [Lags(arrival.request)]
    await world.lose()
    _, part = await world.welcome()
    assert part.flights[0][1].behind


async def test_the_follower_hears_of_endpoints_that_are_configured_here(world):
    await world.welcome()
    watch = world.link.watch(HERE)
    world.owner.say(up(on_trial=True), up(THERE))
    assert world.told == [("up", HERE, "m", IDENTITY)]
    assert (watch.on_trial, watch.keeps) == (True, True)
    world.owner.say(Down(HERE, keeps=False, drained=False), Down(THERE, keeps=False, drained=False))
    assert world.told[1:] == [("down", HERE)]
    assert not watch.keeps
    world.owner.say(Gone(HERE), Gone(THERE))
    assert world.told[2:] == [("gone", HERE)]


async def test_an_endpoint_whose_key_is_missing_here_gets_nothing_from_here(world):
    await world.welcome()
    with structlog.testing.capture_logs() as logs:
        world.owner.say(up(keyed=True), up(keyed=True))
    assert world.told == [("down", HERE)] * 2
    assert [(log["endpoint"], "api_key_file" in log["help"]) for log in logs] == [(HERE, True)], "said once"
    arrival, task = world.ask()
    await world.owner.heard()
    world.owner.say(Sent(Dispatch(arrival.request, HERE)))
    (back,) = await world.owner.heard()
    assert (type(back), back.arrival.request, back.why) == (GivenBack, arrival.request, Back.UNREACHED)
    world.keys.add(HERE)
    world.link.keys_changed()
    assert world.told[2:] == [("up", HERE, "m", IDENTITY)]
    world.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert (await task).endpoint == HERE


async def test_an_endpoint_that_has_a_key_here_alone_is_used(world):
    await world.welcome()
    world.keys.add(HERE)
    world.owner.say(up(), up(keyed=True))
    assert world.told == [("up", HERE, "m", IDENTITY)] * 2


@pytest.mark.parametrize("down", [False, True])
async def test_an_endpoint_configured_later_is_as_the_owner_said_last(world, down):
    await world.welcome()
    world.owner.say(up(THERE), *[Down(THERE, keeps=True, drained=False)] * down)
    world.link.watch(THERE)
    await turns()
    assert world.told == [("down", THERE) if down else ("up", THERE, "m", IDENTITY)]


async def test_what_an_owner_had_it_keep_is_given_to_the_next(world):
    await world.welcome()
    world.owner.say(Keep("m", b"old"), Keep("n", b"other"), Keep("m", b"new"))
    since = world.clock()
    await world.lose(reachable=False)
    await asyncio.sleep(1.0)
    world.reachable = True
    hello, _ = await world.welcome()
    assert [(kept.model, kept.warmth) for kept in hello.kept] == [("m", b"new"), ("n", b"other")]
    assert hello.kept[0].age == pytest.approx(world.clock() - since, abs=0.1)


async def test_an_endpoint_that_the_owner_does_not_know_is_forgotten_at_once(world):
    await world.welcome()
    world.owner.say(up(), up(THERE), Gone(THERE))
    before = world.link.watch(THERE)
    assert [world.link.forget(endpoint) for endpoint in (HERE, THERE, THERE)] == [False, True, False]
    assert world.link.watch(THERE) is not before


async def test_an_endpoint_that_is_gone_is_declared_no_more(world):
    await world.welcome()
    world.owner.say(up(), up(THERE), Gone(HERE))
    await world.lose()
    hello, _ = await world.welcome()
    assert [known.endpoint for known in hello.endpoints] == [THERE]


async def test_an_endpoint_that_comes_up_hears_every_count(world):
    await world.welcome()
    world.owner.say(up())
    arrival = await world.in_flight()
    world.owner.say(Wanted("m", {arrival.request: 16.0}, False))
    world.link.admission("m").first_tokens(arrival.request, 4)
    world.owner.say(up())
    assert await world.owner.heard() == [Moved("m", ((arrival.request, 4),))]


async def test_orders_of_the_owner_are_passed_on(world):
    await world.welcome()
    world.owner.say(Evacuate(HERE), Expire([1, 2]))
    assert world.told == [("evacuate", HERE), ("expire", [1, 2])]


async def test_of_tokens_only_the_first_is_told_by_name(world):
    await world.welcome()
    watch = world.link.watch(HERE)
    watch.dispatched(1, 10, streams=True)
    watch.dispatched(2, 10, started=True)
    await world.owner.heard()
    watch.progressed([1, 2, 3])
    watch.progressed([1, 2])
    watch.failed("it broke", aborted=True)
    watch.finished(1, delivering=True)
    watch.finished(1)
    assert await world.owner.heard() == [
        Stepped(HERE, [1]),
        Stepped(HERE, []),
        Failed(HERE, "it broke", aborted=True, dead=False),
        Unwatched(HERE, 1, delivering=True),
    ]
    assert [*watch.watched] == [2]


async def test_a_front_that_shuts_down_refuses_what_waits(world):
    await world.welcome()
    flying = await world.in_flight()
    arrival, task = world.ask()
    await world.owner.heard()
    world.link.leave()
    with pytest.raises(RejectedError) as refused:
        await task
    assert refused.value.command.outcome is Outcome.DRAINING
    assert await world.owner.heard() == [Left(arrival.request)]
    assert world.link._carried.keys() == {flying.request}


async def test_the_owner_is_told_what_was_counted_when_it_asks(world):
    await world.welcome()
    world.owner.say(Report(4))
    assert await world.owner.heard() == [Reported(4, FIGURES)]


async def test_a_front_that_leaves_says_what_it_counted_and_waits_until_it_is_taken(world):
    await world.link.leave_figures()  # to nobody
    await world.welcome()
    world.owner.untaken = 1
    parting = asyncio.create_task(world.link.leave_figures())
    assert await world.owner.heard() == [Reported(None, FIGURES)]
    assert not parting.done()
    world.owner.untaken = 0
    await asyncio.wait_for(parting, PARTED_WITHIN / 2)


async def test_the_last_figures_of_a_front_come_after_those_it_was_asked_for(world):
    await world.welcome()
    world.counted.clear()
    world.owner.say(Report(4))
    assert await world.owner.heard() == []
    parting = asyncio.create_task(world.link.leave_figures())
    assert await world.owner.heard() == []
    world.counted.set()
    assert await world.owner.heard() == [Reported(4, FIGURES), Reported(None, FIGURES)]
    await parting


async def test_an_owner_that_goes_meanwhile_is_not_waited_for(world):
    await world.welcome()
    world.counted.clear()
    parting = asyncio.create_task(world.link.leave_figures())
    await turns()
    await world.lose()
    world.counted.set()
    await asyncio.wait_for(parting, PARTED_WITHIN)


async def test_an_owner_that_takes_nothing_is_not_waited_for_long(world):
    await world.welcome()
    world.owner.untaken = 1
    await asyncio.wait_for(world.link.leave_figures(), 2 * PARTED_WITHIN)


async def test_a_question_is_asked_again_of_the_next_owner(world):
    await world.welcome()
    asked = asyncio.create_task(world.link.questions.decided())
    assert await world.owner.heard() == [ShowState(1)]
    await world.lose()
    hello, question, _ = await world.welcome()
    assert (type(hello), question) == (Hello, ShowState(1))
    nothing = Decided(endpoints=(), queues=())
    world.owner.say(Answer(2, b"of nobody"), Answer(1, nothing.model_dump_json().encode()))
    assert await asked == nothing
    world.owner.say(Answer(1, b"late"))
    assert not [*world.link.questions]


# In a tier of several gateways.


class Member(World):
    """A front that follows owners by their epochs."""

    def __init__(self):
        self.allegiance = Allegiance()
        super().__init__(self.allegiance)

    async def follow(self, epoch=(3, "a")):
        """What the front says first to an owner of this epoch."""
        await asyncio.sleep(2 * RETRY)
        self.owner.say(Reigns(epoch))
        return await self.welcome()

    async def beat(self, seconds=BEAT):
        """Return heartbeats for so long; what else the front said."""
        said = []
        for _ in range(round(seconds / BEAT)):
            await asyncio.sleep(BEAT)
            for message in await self.owner.heard():
                if isinstance(message, Ping):
                    self.owner.say(Pong(message.number))
                else:
                    said.append(message)
        return said


@pytest.fixture
async def member():
    member = Member()
    member.link.watch(HERE)
    yield member
    member.running.cancel()
    member.link.close()


def hello(said):
    (hello,) = [message for message in said if isinstance(message, Hello)]
    return hello


async def test_a_front_names_the_epoch_that_it_followed_last(member):
    assert hello(await member.follow()).epoch is None
    assert member.allegiance.epoch == Epoch(3, "a")
    await member.lose()
    assert hello(await member.follow((4, "b"))).epoch == (3, "a")
    await member.lose()
    assert hello(await member.follow((4, "b"))).epoch == (4, "b")


async def test_heartbeats_have_numbers_of_their_own(member):
    await member.follow()
    await asyncio.sleep(4 * BEAT)
    numbers = [message.number for message in await member.owner.heard() if isinstance(message, Ping)]
    assert len(numbers) >= 4
    assert sorted(set(numbers)) == numbers


async def test_while_heartbeats_come_back_dispatches_are_obeyed(member):
    await member.follow()
    await member.beat(5 * OBEYED_WITHIN)
    before = member.owner
    arrival, task = member.ask()
    await turns()
    member.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert (await task).endpoint == HERE
    assert member.owner is before


@pytest.mark.parametrize("beats", [0, 1])
async def test_a_dispatch_without_a_fresh_heartbeat_is_not_obeyed_and_all_is_declared_anew(member, beats):
    """An owner that was stopped, and goes on with what it had decided."""
    await member.follow()
    await member.beat(beats * BEAT)
    arrival, task = member.ask()
    await asyncio.sleep(OBEYED_WITHIN + BEAT)
    before = member.owner
    before.say(Sent(Dispatch(arrival.request, HERE)))
    await turns()
    assert before.aborted
    assert not task.done()
    said = await member.follow()
    (declared,) = [message for message in said if isinstance(message, Declares)]
    assert [waiting.request for _, waiting in declared.waiting] == [arrival.request]
    assert declared.flights == []
    await member.beat()
    member.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert (await task).endpoint == HERE


@pytest.mark.parametrize("beats", [0, 1])
@pytest.mark.parametrize("order", ["refused", "evacuate", "expire", "down", "up", "gone", "launch", "seems"])
async def test_whatever_an_owner_orders_without_a_fresh_heartbeat_is_not_obeyed(member, order, beats):
    await member.follow()
    await member.beat()
    flying, (waiting, task) = await member.in_flight(), member.ask()
    member.owner.say(up())
    await member.beat(beats * BEAT)
    member.told.clear()
    orders = {
        "launch": Launch(HERE, runs=False),
        "seems": Seems(HERE, "hung", "no progress"),
        "refused": Refused(Reject(waiting.request, Outcome.QUEUE_FULL, 1.0)),
        "evacuate": Evacuate(HERE),
        "expire": Expire([flying.request]),
        "down": Down(HERE, keeps=False, drained=False),
        "up": up(),
        "gone": Gone(HERE),
    }
    await asyncio.sleep(OBEYED_WITHIN + BEAT)
    before = member.owner
    before.say(orders[order], Welcome())
    await turns()
    assert before.aborted
    assert (member.told, task.done()) == ([], False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(member.parent.next_line(), 0)
    (declared,) = [message for message in await member.follow() if isinstance(message, Declares)]
    assert [flight.arrival.request for _, flight in declared.flights] == [flying.request]
    assert [known.request for _, known in declared.waiting] == [waiting.request]
    task.cancel()
    await turns()


async def test_a_heartbeat_that_comes_back_late_counts_from_when_it_was_sent(member):
    await member.follow()
    arrival, task = member.ask()
    await asyncio.sleep(BEAT)
    (ping, *_) = [message for message in await member.owner.heard() if isinstance(message, Ping)]
    await asyncio.sleep(OBEYED_WITHIN)
    member.owner.say(Pong(ping.number), Sent(Dispatch(arrival.request, HERE)))
    await turns()
    assert not task.done()
    task.cancel()
    await turns()


async def test_an_owner_that_has_not_said_its_epoch_is_not_obeyed(member):
    await member.welcome()
    await member.beat()
    arrival, task = member.ask()
    await turns()
    member.owner.say(Sent(Dispatch(arrival.request, HERE)))
    await turns()
    assert not task.done()
    task.cancel()
    await turns()


@pytest.mark.parametrize("earlier", [(4, "z"), (5, "a")])
async def test_nothing_that_a_surpassed_owner_says_counts(member, earlier):
    await member.follow((5, "b"))
    arrival, task = member.ask()
    await turns()
    await member.lose()
    await asyncio.sleep(2 * RETRY)
    old = member.owner
    refused = Refused(Reject(arrival.request, Outcome.QUEUE_FULL, 1.0))
    old.say(Reigns(earlier), up(), More(), Welcome(), refused)
    old.say(Sent(Dispatch(arrival.request, HERE)))
    said = await old.heard()
    assert Surpassed((5, "b")) in said, "so that it hears of the later one"
    assert not any(isinstance(message, Declares) for message in said)
    assert not old.aborted, "first it is to hear that"
    assert (task.done(), member.told, member.link.connected.is_set()) == (False, [], False)
    await asyncio.sleep(BEAT)
    assert old.aborted
    assert member.allegiance.epoch == Epoch(5, "b")
    await member.follow((5, "b"))
    await member.beat()
    member.owner.say(Sent(Dispatch(arrival.request, HERE)))
    assert (await task).endpoint == HERE, "the next connection is heard again"


async def test_who_is_to_turn_leaves_its_owner_and_connects_anew(member):
    await member.follow()
    await member.beat()
    arrival = await member.in_flight()
    before = member.owner
    member.link.turn()
    said = await member.follow((4, "b"))
    assert before.aborted
    assert member.owner is not before
    (declared,) = [message for message in said if isinstance(message, Declares)]
    assert [flight.arrival.request for _, flight in declared.flights] == [arrival.request]
    member.link.turn()
    await turns()
    member.link.turn()  # without an owner it is nothing


async def test_in_a_tier_an_owner_that_says_nothing_is_given_up_before_it_was_welcome(member):
    await asyncio.sleep(2 * RETRY)
    before = member.owner
    await asyncio.sleep(SILENT - 2 * BEAT)
    assert not before.aborted
    await asyncio.sleep(3 * BEAT)
    assert before.aborted


async def test_a_front_is_in_touch_only_while_its_heartbeats_come_back(member):
    assert not member.link.in_touch
    await member.follow()
    assert not member.link.in_touch
    await member.beat()
    assert member.link.in_touch
    await asyncio.sleep(OBEYED_WITHIN + BEAT)  # it may be cut off: its connection stays
    assert (member.link.connected.is_set(), member.link.in_touch) == (True, False)


async def test_the_first_word_of_a_new_owner_is_obeyed_once_it_returned_a_heartbeat(member):
    arrival, task = member.ask()
    await asyncio.sleep(2 * RETRY)
    owner = member.owner
    owner.say(Reigns((1, "a")), More())
    for _ in range(2):  # it answers what it was told, and sends what waits, at once
        for message in await owner.heard():
            if isinstance(message, Ping):
                owner.say(Pong(message.number))
    owner.say(Welcome(), Sent(Dispatch(arrival.request, HERE)))
    assert (await task).endpoint == HERE
    assert not owner.aborted


async def test_an_owner_that_is_not_obeyed_yet_is_left_at_its_first_word(member):
    asked = [member.ask() for _ in range(3)]
    await asyncio.sleep(2 * RETRY)
    owner = member.owner
    with structlog.testing.capture_logs() as logs:
        owner.say(Reigns((1, "a")), Welcome(), *(Sent(Dispatch(arrival.request, HERE)) for arrival, _ in asked))
    await turns()
    assert owner.aborted
    assert len(logs) == 1
    assert not any(task.done() for _, task in asked)
    for _, task in asked:
        task.cancel()


async def test_what_is_waited_for_is_told_also_to_the_next_owner(world):
    await world.welcome()
    world.link.tell_awaited({"m": 0.5})
    assert await world.owner.heard() == [Awaits({"m": 0.5})]
    world.owner.say(Starts(HERE, 2.0, failed=False), Starts(EndpointId("elsewhere:1"), None, failed=True))
    await turns()
    assert world.told[-1] == ("starts", HERE, 2.0, False)
    await world.lose()
    again = await world.welcome()
    assert any(isinstance(message, Awaits) and message.ages["m"] >= 0.5 for message in again)


async def test_what_its_parent_says_of_engines_is_told_once_the_owner_knows_it_and_to_the_next_one(world):
    news = EngineNews("here:1", ResidencyPhase.STOPPED, turn=1)
    world.parent.on_news(news)
    assert not any(isinstance(message, Launches) for message in await world.welcome()), "an order would come too soon"
    assert await world.owner.heard() == [Launches(news)]
    up, ended = EngineNews("here:1", ResidencyPhase.UP, 2.0, turn=1), EngineEnded("here:1", "It was killed.")
    world.parent.on_news(up)
    world.parent.on_ended(ended)
    assert await world.owner.heard() == [Launches(up), Fell(ended)]
    await world.lose()
    await world.welcome()
    assert await world.owner.heard() == [Launches(up), Fell(ended)]


async def test_its_parent_gets_the_owners_orders(world):
    await world.welcome()
    world.owner.say(Launch(HERE, runs=True), Launch(HERE, runs=False), Seems(HERE, "hung", "no progress"))
    lines = [await world.parent.next_line() for _ in range(3)]
    assert lines == [f"run {HERE}", f"end {HERE}", f"hung {HERE} no progress"]


@pytest.mark.parametrize(("runs", "phase"), [(True, ResidencyPhase.STARTING), (False, ResidencyPhase.LEAVING)])
async def test_an_order_that_the_parent_has_not_answered_is_known_to_the_next_owner(world, runs, phase):
    await world.welcome()
    world.parent.on_news(EngineNews(HERE, ResidencyPhase.STOPPED, 2.0, turn=1))
    world.owner.say(Launch(HERE, runs=runs))
    await turns()
    await world.lose()
    await world.welcome()
    assert await world.owner.heard() == [Launches(EngineNews(HERE, phase, 2.0, turn=1))]
