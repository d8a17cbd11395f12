"""The turnstile: of many, a few a turn of the loop."""

import asyncio
from collections import Counter

from gateway.runtime.turnstile import MOST, Turnstile


class Turns:
    """The turns of the loop, and who passed in which."""

    def __init__(self):
        self.number, self.passed = 0, []

    def note(self, name):
        self.passed.append((name, self.number))

    async def pass_through(self, turnstile, name):
        await turnstile.pass_through()
        self.note(name)

    @property
    def names(self):
        return [name for name, _ in self.passed]

    async def run(self, tasks):
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            self.number += 1


async def test_a_few_pass_at_once():
    turnstile, turns = Turnstile(), Turns()
    for _ in range(3):
        for name in range(MOST):
            turnstile.call(lambda name=name: turns.note(name))
        await turns.run([asyncio.create_task(asyncio.sleep(0))])
    assert turns.names == [*range(MOST)] * 3
    assert max(Counter(turn for _, turn in turns.passed).values()) == MOST


async def test_of_many_a_few_pass_in_each_turn_in_their_order():
    turnstile, turns, many = Turnstile(), Turns(), 10 * MOST

    tasks = [asyncio.create_task(turns.pass_through(turnstile, name)) for name in range(many)]
    await turns.run(tasks)
    assert turns.names == [*range(many)]
    assert max(Counter(turn for _, turn in turns.passed).values()) <= 2 * MOST


async def test_one_that_comes_later_does_not_go_first():
    turnstile, turns, many = Turnstile(), Turns(), 3 * MOST
    for name in range(many):
        turnstile.call(lambda name=name: turns.note(name))
    await asyncio.sleep(0)
    turnstile.call(lambda: turns.note("last"))
    await turns.run([asyncio.create_task(turnstile.pass_through())])
    assert turns.names == [*range(many), "last"]


async def test_who_leaves_while_waiting_keeps_nobody_up():
    turnstile, turns, many = Turnstile(), Turns(), 4 * MOST

    tasks = [asyncio.create_task(turns.pass_through(turnstile, name)) for name in range(many)]
    await asyncio.sleep(0)
    left = range(2 * MOST, 3 * MOST)
    for name in left:
        tasks[name].cancel()
    await turns.run(tasks)
    assert turns.names == [name for name in range(many) if name not in left]
