import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from gateway.relay.client_departure import while_connected
from gateway.runtime.turnstile import MOST, Turnstile
from gateway.server.asgi import DIRECT, ClientGoneError

LEFT = {"type": "http.disconnect"}


async def silent():
    """The messages of a client that stays and says nothing."""
    await asyncio.Event().wait()


async def test_a_server_that_tells_of_departures_is_asked_for_no_message():
    told, ended = [], []

    def watch(left):
        told.append(left)
        return lambda: ended.append(left)

    scope = {"extensions": {DIRECT: SimpleNamespace(leaving=watch)}}
    with while_connected(scope, silent, Turnstile()):
        pass
    assert ended == told
    told.pop()()
    await asyncio.sleep(0)


async def test_a_departure_that_is_told_of_cancels_what_is_done_meanwhile():
    told = []

    async def work():
        direct = SimpleNamespace(leaving=lambda left: told.append(left) or int)
        with while_connected({"extensions": {DIRECT: direct}}, silent, Turnstile()):
            told.pop()()
            await asyncio.sleep(5)

    with pytest.raises(ClientGoneError):
        await work()
    await asyncio.sleep(0)


async def test_what_is_done_for_a_client_ends_when_it_leaves_and_not_what_follows():
    left = asyncio.Event()

    async def receive():
        await left.wait()
        return LEFT

    async def serve():
        with while_connected({}, receive, Turnstile()):
            left.set()
            await asyncio.wait_for(asyncio.Event().wait(), 1)

    with while_connected({}, receive, Turnstile()):
        await asyncio.sleep(0)
    with pytest.raises(ClientGoneError):
        await serve()
    with while_connected({}, receive, Turnstile()):
        await asyncio.sleep(0)  # the watch has seen it leave, and is yet to say so
    await asyncio.sleep(0)
    assert not asyncio.current_task().cancelling()


async def test_whoever_else_cancels_what_is_done_for_a_client_is_heard():
    async def serve():
        with while_connected({}, silent, Turnstile()):
            await asyncio.Event().wait()

    served = asyncio.create_task(serve())
    await asyncio.sleep(0)
    served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served


async def test_of_many_that_leave_at_once_a_few_are_cancelled_in_each_turn_of_the_loop():
    told, turnstile, ended, turn = [], Turnstile(), Counter(), 0

    async def work():
        direct = SimpleNamespace(leaving=lambda left: told.append(left) or int)
        try:
            with while_connected({"extensions": {DIRECT: direct}}, silent, turnstile):
                await asyncio.sleep(5)
        except ClientGoneError:
            ended[turn] += 1

    tasks = [asyncio.create_task(work()) for _ in range(10 * MOST)]
    await asyncio.sleep(0)
    for left in told:
        left()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    assert ended.total() == len(tasks)
    assert max(ended.values()) <= 2 * MOST
