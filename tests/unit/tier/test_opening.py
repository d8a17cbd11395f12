import asyncio

import pytest

from gateway.admission.events import (
    Back,
    Declared,
    Verdict,
)
from gateway.tier import carried
from gateway.tier.frames import (
    VERSION,
    Came,
    Declares,
    Ended,
    GivenBack,
    Hello,
    Left,
    Sent,
)
from gateway.tier.hall import DECLARED_WITHIN
from tests.unit.tier.halls import (
    HERE,
    ONE,
    THREE,
    TWO,
    World,
    arrival,
    known,
    sent,
)
from tests.unit.tier.lines import turns

pytestmark = pytest.mark.usefixtures("hurried", "nothing_to_keep")


def waiting(world):
    (driver,) = world.made
    return [record.arrival for record in sorted(driver.controller._queue, key=lambda record: record.order)]


async def test_nothing_is_sent_before_all_fronts_have_declared():
    world = World(fronts=2)
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
    world = World(fronts=2)
    world.up()
    first = await world.join(1, declared=[("m", Declared(ONE, HERE, 5))])
    first.say(GivenBack("m", arrival(1, waited=3.0, failures=1, avoid=HERE), Back.FAILED))
    assert world.load() == (0, 0)
    await world.join(2, declared=[("m", Declared(arrival(1, 2), HERE))])
    assert world.load() == (1, 1)
    assert await first.heard() == []
    world.hall.close()
    world.cores.close()


async def test_what_waits_for_an_owner_begins_over_several_turns(monkeypatch):
    monkeypatch.setattr(carried, "PART", 1)
    world = World(fronts=2)
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


async def test_an_owner_waits_for_fronts_for_so_long():
    world = World(fronts=2)
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
    world = World(fronts=2)
    world.up()
    front = await world.join(1, waiting=[("m", ONE), ("m", TWO)])
    front.say(Left(ONE.request))
    await asyncio.sleep(DECLARED_WITHIN + 0.1)
    assert await front.heard() == [sent(TWO)]
    assert world.load() == (1, 0)
    world.hall.close()
    world.cores.close()


async def test_a_front_lost_before_an_owner_begins_is_forgotten():
    world = World(fronts=2)
    world.up()
    front = await world.join(1, waiting=[("m", ONE)])
    await front.end()
    await asyncio.sleep(DECLARED_WITHIN + 0.1)
    assert world.load() == (0, 0)
    world.cores.close()


async def test_an_owner_that_ended_begins_nothing():
    world = World(fronts=2)
    front = await world.join(1, known=[known()], waiting=[("m", ONE)])
    world.hall.close()
    await asyncio.sleep(2 * DECLARED_WITHIN)
    assert world.load() == (0, 0)
    assert Sent not in {type(message) for message in await front.heard()}
    world.cores.close()
