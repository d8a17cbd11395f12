"""The turnstile: of many tasks, one a turn of the loop."""

import asyncio

from gateway.runtime.turnstile import Turnstile


async def test_one_goes_through_at_once():
    turnstile = Turnstile()
    for _ in range(3):
        passing = turnstile.pass_through()
        try:
            passing.send(None)
        except StopIteration:
            passed = True
        else:
            passed = False
        assert passed
        await asyncio.sleep(0)


async def test_of_many_one_goes_through_in_each_turn_in_their_order():
    turnstile, turn, passed = Turnstile(), 0, []

    async def go(name):
        await turnstile.pass_through()
        passed.append((name, turn))

    tasks = [asyncio.create_task(go(name)) for name in range(20)]
    tasks[5].cancel()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    assert [name for name, _ in passed] == [name for name in range(20) if name != 5]
    assert len({turn for _, turn in passed}) == len(passed)


async def test_who_leaves_while_waiting_keeps_nobody_up():
    turnstile, passed = Turnstile(), []

    async def go(name):
        await turnstile.pass_through()
        passed.append(name)

    tasks = [asyncio.create_task(go(name)) for name in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.wait(tasks, timeout=5)
    await turnstile.pass_through()
    assert passed == [0, 3]
