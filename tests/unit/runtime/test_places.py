import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime.places import Places


class Users:
    """Requests that take places; `held` are those that have one, in the order they got it."""

    def __init__(self, places):
        self.places = places
        self.held = []
        self._tasks = {}

    async def ask(self, flow):
        name = (flow, len(self._tasks))
        self._tasks[name] = asyncio.create_task(self._take(name))
        await asyncio.sleep(0)
        return name

    async def _take(self, name):
        await self.places.acquire(name[0])
        self.held.append(name)

    async def release(self, name):
        self.held.remove(name)
        self.places.release(name[0])
        await asyncio.sleep(0)

    async def leave(self, name):
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])

    @property
    def flows(self):
        return "".join(flow for flow, _ in self.held)


async def test_a_place_that_falls_free_goes_to_the_flow_that_holds_the_fewest():
    users = Users(Places(3))
    for flow in "aaaaab":
        await users.ask(flow)
    assert users.flows == "aaa"
    assert users.places.full()
    await users.release(users.held[0])
    assert users.flows == "aab"
    await users.release(users.held[0])
    assert users.flows == "aba"


async def test_a_flow_that_holds_its_most_leaves_places_to_others():
    users = Users(Places(3, per_flow=2))
    for flow in "aaaa":
        await users.ask(flow)
    assert users.flows == "aa"
    assert not users.places.full()
    b = await users.ask("b")
    assert users.flows == "aab"
    await users.release(b)
    assert users.flows == "aa", "not to those of `a` that wait"
    for flows in ("aa", "aa", "aa", "a", ""):
        assert users.flows == flows
        if users.held:
            await users.release(users.held[0])
    assert users.flows == ""
    assert not users.places.full()


async def test_flows_that_hold_as_many_take_turns_and_each_in_order_of_arrival():
    users = Users(Places(1))
    for flow in "abbcc":
        await users.ask(flow)
    got = []
    while users.held:
        got += users.held
        await users.release(users.held[0])
    assert got == [("a", 0), ("b", 1), ("c", 3), ("b", 2), ("c", 4)]
    assert not users.places.full()


async def test_whoever_leaves_while_it_waits_takes_no_place():
    users = Users(Places(1))
    first = await users.ask("a")
    second = await users.ask("b")
    third = await users.ask("b")
    await users.leave(second)
    await users.release(first)
    assert users.held == [third]


async def test_a_place_is_handed_on_by_who_leaves_as_its_turn_comes():
    places = Places(1)
    await places.acquire("a")
    waiting = asyncio.create_task(places.acquire("b"))
    await asyncio.sleep(0)
    places.release("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not places.full()


async def test_a_place_is_not_given_to_who_has_just_left():
    places = Places(1)
    await places.acquire("a")
    waiting = asyncio.create_task(places.acquire("b"))
    await asyncio.sleep(0)
    waiting.cancel()
    places.release("a")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not places.full()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["release", "leave"]), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS)
def test_never_more_than_the_cap_and_none_idle_while_one_waits(steps):
    async def play():
        users, asked = Users(Places(3)), []
        for step, what in steps:
            waiting = [name for name in asked if name not in users.held]
            if step == "ask":
                asked.append(await users.ask(what))
            elif step == "release" and users.held:
                name = users.held[what % len(users.held)]
                asked.remove(name)
                await users.release(name)
            elif step == "leave" and waiting:
                name = waiting[what % len(waiting)]
                asked.remove(name)
                await users.leave(name)
            assert len(users.held) == min(3, len(asked))
            assert users.places.full() == (len(asked) >= 3)
        for name in [name for name in asked if name not in users.held]:
            await users.leave(name)

    asyncio.run(play())
