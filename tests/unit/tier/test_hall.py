import asyncio
from dataclasses import replace

import pytest

from gateway.admission.commands import Reject
from gateway.admission.events import (
    NOWHERE,
    Back,
    Capacity,
    Declared,
    EndpointId,
    Learned,
    Observed,
    ResidencyPhase,
    Verdict,
    Warmth,
)
from gateway.admission.outcomes import Outcome
from gateway.pools.launcher import EngineEnded, EngineNews
from gateway.tier import hall
from gateway.tier.epoch import Epoch
from gateway.tier.fence import BEAT, GIVEN_UP_AFTER
from gateway.tier.frames import (
    OLDEST,
    VERSION,
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
    Kept,
    Lags,
    Launch,
    Launches,
    Left,
    More,
    Moved,
    Ping,
    Pong,
    Refused,
    Reigns,
    Sent,
    Starts,
    Stepped,
    Surpassed,
    Unwatched,
    Up,
    Wanted,
    Watched,
    Welcome,
    packed_warmth,
    warmth_of,
)
from gateway.tier.hall import DECLARED_WITHIN
from gateway.tier.remote_watch import RemoteWatch
from tests.unit.tier.halls import (
    CAPACITY,
    HERE,
    ONE,
    THERE,
    THREE,
    TWO,
    Election,
    World,
    arrival,
    beat,
    identity,
    known,
    sent,
)
from tests.unit.tier.lines import turns

pytestmark = pytest.mark.usefixtures("hurried", "nothing_to_keep")


async def test_a_front_is_told_whether_an_endpoint_has_a_key_and_not_which(world):
    world.monitors[HERE].keyed = True
    world.up()
    front = await world.join(skip=False)
    assert (await front.heard())[0] == Up(HERE, "m", identity(), CAPACITY, False, keyed=True)


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


async def test_a_front_of_the_next_release_is_served(world):
    front = world.connect()
    front.say(Hello(VERSION + 1, 1, oldest=VERSION))
    assert More() in await front.heard()


@pytest.mark.parametrize("message", [Came("m", ONE), Hello(VERSION + 2, 1, oldest=VERSION + 1), Hello(OLDEST - 1, 1)])
async def test_a_front_that_does_not_say_who_it_is_is_cut_off(world, message):
    front = world.connect()
    front.say(message, Came("m", ONE))
    await turns()
    assert front.aborted
    assert world.hall.fronts == 0


async def test_a_front_that_says_again_who_it_is_is_cut_off(world, front):
    front.say(Hello(VERSION, 1))
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


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("ends", [Left, lambda request: Ended(request, Verdict.DONE, 7)])
async def test_what_is_relayed_is_held_until_it_is_given_back_or_has_ended(world, front, declared, ends):
    relayed = replace(ONE, relayed=True)
    if declared:
        front.say(Declares([("m", Declared(relayed, NOWHERE))], [], [], last=True))
    else:
        front.say(Came("m", relayed))
        assert await front.heard() == [sent(ONE, NOWHERE)]
    (driver,) = world.made
    assert driver._relayed == {ONE.request}
    assert world.load() == (0, 0), "the core does not know of it"
    front.say(ends(ONE.request))
    assert driver._relayed == set()
    front.say(Came("m", replace(TWO, relayed=True)))
    await front.end()
    await turns()
    assert driver._relayed == set(), "its front is gone"


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


async def test_what_a_front_has_is_asked_for_in_parts():
    world = World(fronts=1)
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


async def test_a_flight_is_known_once_its_endpoint_is(world, front):
    watched = Watched(HERE, ONE.request, 10, True, False, True)
    flight = Declares([("m", Declared(ONE, HERE, 5))], [watched], [], last=True)
    for _ in range(2):
        front.say(flight)
        assert world.load() == (1, 0)
        assert world.monitors[HERE].requests.keys() == {ONE.request}
    assert await front.heard() == []


async def test_what_is_only_passed_on_is_told_as_such(world, front):
    sent = []
    watch = RemoteWatch(HERE, sent.append)
    watch.dispatched(ONE.request, None)
    watch.dispatched(TWO.request, 10)
    front.say(*sent)
    assert await front.heard() == []
    assert world.monitors[HERE].requests.keys() == {ONE.request, TWO.request}
    assert world.monitors[HERE].passing == {ONE.request}


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

    late = World(fronts=2)
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
    assert late.made[0].controller.learned() == warmth_of(keep.warmth).learned != Learned(())
    first.say(Came("m", arrival(7)))
    assert late.load() == (1, 0)
    late.hall.close()
    late.cores.close()


async def test_what_was_kept_and_cannot_be_read_keeps_no_owner_from_beginning():
    world = World(fronts=1)
    world.up()
    front = await world.join(1, kept=[Kept("m", 0.5, b"\xc1")])
    front.say(Came("m", ONE))
    assert await front.heard() == [sent(ONE)]
    world.hall.close()
    world.cores.close()


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


async def test_a_gateway_whose_connection_has_broken_is_not_connected_though_it_keeps_its_seat(tier):
    far = await tier.join(1, "b:1")
    assert tier.election.machines[-1] == {"b:1"}
    await far.end()
    assert tier.election.machines[-1] == set()
    assert len(tier.hall.seats) == 1


async def test_what_a_gateway_has_is_known_once_each_of_its_fronts_has_declared(tier):
    def joins(front):
        tier.connect("b:1").say(Hello(VERSION, front, fronts=2), Declares([], [], [], last=True))

    joins(1)
    assert (tier.election.machines[-1], tier.election.whole) == ({"b:1"}, set())
    joins(2)
    assert (tier.election.machines[-1], tier.election.whole) == ({"b:1"}, {"b:1"})


async def test_an_owner_of_a_tier_begins_as_soon_as_all_fronts_that_are_known_have_declared():
    election = Election()
    tier = World(fronts=None, reign=election)
    tier.up()

    def joins(front, machine, fronts, waiting=()):
        seated = tier.connect(machine)
        seated.say(Hello(VERSION, front, fronts=fronts), Declares([], [], list(waiting), last=True))
        return seated

    joins(1, None, 2, [("m", ONE)])
    joins(2, "b:1", 2)
    joins(3, "b:1", 2)
    election.complete = True
    tier.hall.look()
    assert tier.load() == (0, 0), "a front of this gateway is missing"
    election.complete = False
    joins(4, None, 2)
    assert tier.load() == (0, 0), "Redis has shown another gateway"
    election.complete = True
    tier.hall.look()
    assert tier.load() == (1, 0)
    tier.hall.close()
    tier.cores.close()


async def test_an_owner_waits_for_a_front_that_is_lost_before_it_has_declared_all():
    tier = World(fronts=None, reign=Election(complete=True))
    tier.up()
    lost = tier.connect("b:1")
    lost.say(Hello(VERSION, 1, fronts=2))
    await lost.end()
    tier.connect("b:1").say(Hello(VERSION, 2, fronts=2), Declares([], [], [("m", arrival(1, 2))], last=True))
    await tier.join(3)
    assert tier.load() == (0, 0)
    tier.hall.close()
    tier.cores.close()


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
    front.say(Moved("m", ((ONE.request, 4),)), Ended(TWO.request, Verdict.DONE, 3))
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
    assert world.monitors[HERE].requests == {ONE.request: {"streams": True, "evacuated": False, "started": True}}


async def test_who_waited_for_an_engine_and_left_while_a_front_had_no_connection_is_not_waited_with(world, front):
    front.say(Awaits({"m": 1.0}))
    await turns()
    assert world.awaited == {1: {"m": 1.0}}
    await world.join(1)
    assert world.awaited == {}


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


async def test_what_a_front_knows_of_an_endpoint_does_not_count_where_that_has_another_name_now(world):
    world.cores.add(HERE, "n")
    front = await world.join(known=[known()], skip=False)
    assert await front.heard() == [Gone(HERE), More(), Welcome()]
    assert HERE not in world.cores.known


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


async def test_what_the_operator_drained_stays_so_where_a_probe_came_before_the_fronts(world):
    world.up(HERE)
    world.up(THERE)
    await world.join(known=[known(drained=True), known(THERE)])
    assert [monitor.drained for monitor in world.monitors.values()] == [True, False]


async def test_what_the_operator_let_back_is_not_drained_by_a_front_that_missed_it(world, front):
    world.up(HERE)
    await front.end()
    await world.join(known=[known(drained=True)])
    assert not world.monitors[HERE].drained


async def test_an_endpoint_found_down_before_its_front_came_is_down(world):
    world.monitors[HERE].probed.set()
    front = await world.join(known=[known()], skip=False)
    assert Down(HERE, keeps=False, drained=False) in await front.heard()


async def test_progress_reaches_the_core_of_each_request(world, front):
    world.up(THERE, "n")
    front.say(Came("m", ONE), Came("n", TWO))
    await front.heard()
    front.say(Moved("m", ((ONE.request, 5), (TWO.request, 20), (THREE.request, 1))))
    wanted = {m.model: m.next_reports for m in await front.heard() if isinstance(m, Wanted)}
    assert {model: list(of_model) for model, of_model in wanted.items()} == {"m": [ONE.request], "n": [TWO.request]}


async def test_who_is_behind_holds_nothing_of_an_engine_without_requests(world, front):
    front.say(Came("m", ONE), Lags(ONE.request), Lags(THREE.request))
    await front.heard()
    core = world.cores.driver_of(HERE).controller
    for sequences in (1, 0):
        await asyncio.sleep(2)
        now = asyncio.get_running_loop().time()
        world.cores.observed(Observed(HERE, now, 0.0, 0, 0, None))
        assert core.load(now).sequences == sequences
    assert core.in_flight(HERE) == 1
    front.say(Ended(ONE.request, Verdict.DONE, 3))
    await front.heard()
    assert core.in_flight(HERE) == 0


async def test_counts_are_wanted_from_whose_request_it_is(world, front):
    world.up(capacity=Capacity(max_model_len=1000, kv_blocks=100))
    other = await world.join(2)
    front.say(Came("m", ONE))
    other.say(Came("m", arrival(1, 2)))
    await front.heard(), await other.heard()
    other.say(Moved("m", ((arrival(1, 2).request, 5),)))
    assert await front.heard() == []
    assert [type(message) for message in await other.heard()] == [Wanted]


async def test_what_requests_see_reaches_the_monitor(world, front):
    front.say(
        Watched(HERE, ONE.request, 10, streams=True, evacuated=True, started=False),
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
        Moved("m", ((ONE.request, 3),)),
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


async def test_what_fronts_have_on_an_endpoint_that_no_settings_name_is_known(world, front):
    nobody = EndpointId("nobody")
    assert not world.hall.carries(nobody)
    front.say(Watched(nobody, ONE.request, 10, True, False, False))
    assert world.hall.carries(nobody)
    front.say(Unwatched(nobody, ONE.request, False))
    assert not world.hall.carries(nobody)


async def test_an_owner_that_ends_cuts_everybody_off(world, front):
    silent = world.connect()
    front.say(Came("m", ONE), Came("m", TWO))
    world.hall.close()
    await turns()
    assert front.aborted
    assert silent.aborted
    assert world.hall.fronts == 0


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
    assert tier.election.machines[-1] == {"c:1"}, "at once: it may be with another owner already"
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


async def test_what_waits_at_a_lost_front_of_another_gateway_gets_no_room_that_others_could_use(tier):
    front, other = await tier.join(1, "b:1"), await tier.join(2)
    runs, waits = arrival(1, 2), arrival(2, 2)
    other.say(Came("m", runs))
    await turns()
    front.say(Came("m", ONE))
    await turns()
    other.say(Came("m", waits))
    await turns()
    assert tier.load() == (1, 2)
    await front.end()
    other.say(Ended(runs.request, Verdict.DONE, 5))
    await turns()
    assert sent(waits) in await other.heard(), "the lost front would not hear of its turn"
    again = await tier.join(1, "b:1", waiting=[("m", ONE)])
    other.say(Ended(waits.request, Verdict.DONE, 5))
    assert await again.heard() == [sent(ONE)], "it waits again as it declares itself anew"


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


async def test_an_owner_that_ended_says_nothing_of_fronts_that_are_the_next_ones_now(tier):
    await tier.join(1, "b:1")
    assert tier.election.machines == [{"b:1"}]
    tier.hall.close()
    await asyncio.sleep(2 * GIVEN_UP_AFTER)
    assert tier.election.machines == [{"b:1"}]


async def test_an_owner_that_may_not_decide_orders_nothing_until_it_may_again(tier):
    front = await tier.join()
    front.say(Came("m", ONE), Came("m", TWO))
    await front.heard()
    tier.hall.withhold(withholds=True)
    tier.hall.withhold(withholds=True)
    tier.down()
    tier.hall.evacuate(HERE)
    tier.hall.expire([ONE.request])
    front.say(Came("nobody's", THREE))
    await beat(front, tier.policy.no_endpoint_ttl + 1.0)  # the core refuses what waits
    assert {type(message) for message in await front.heard()} == {Pong}
    tier.hall.withhold(withholds=False)
    said = await front.heard()
    assert [type(message) for message in said] == [Down, Evacuate, Expire, Refused, Refused]
    assert [message.reject.request for message in said[3:]] == [THREE.request, TWO.request]
    tier.hall.evacuate(HERE)
    assert await front.heard() == [Evacuate(HERE)]


async def test_an_engine_is_launched_over_a_front_of_its_gateway_while_the_owner_may_decide(tier):
    heard, lost, ended = [], [], []
    launchers = tier.hall.launchers
    launchers.on_news, launchers.on_lost, launchers.on_ended = heard.append, lost.append, ended.append
    front, other = await tier.join(1, "b:1"), await tier.join(2, "c:1")
    news, fell = EngineNews(THERE, ResidencyPhase.STOPPED, turn=1), EngineEnded(THERE, "It was killed.")
    front.say(Launches(news), Fell(fell))
    assert (heard, ended) == ([news], [fell])
    tier.hall.withhold(withholds=True)
    launchers.run(THERE)
    assert await front.heard() == []
    tier.hall.withhold(withholds=False)
    assert await front.heard() == [Launch(THERE, runs=True)]
    assert await other.heard() == []
    await front.end()
    await turns()
    assert lost == [THERE], "it may have gone with its gateway"


async def test_who_waits_at_a_front_for_an_engine_is_told_and_forgotten_with_it(world, front):
    front.say(Awaits({"m": 1.5}))
    await turns()
    assert list(world.awaited.values()) == [{"m": 1.5}]
    world.hall.starts(HERE, 2.0, failed=False)
    assert await front.heard() == [Starts(HERE, 2.0, failed=False)]
    await front.end()
    await turns()
    assert world.awaited == {}
