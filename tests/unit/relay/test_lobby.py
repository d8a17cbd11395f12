import asyncio
from types import SimpleNamespace

import pytest

from gateway.admission.outcomes import Outcome
from gateway.config.settings import QueueSettings
from gateway.relay.exchange import RefusedError
from gateway.relay.lobby import Lobby


class Guest:
    """A request that waits until it is let go."""

    def __init__(self, lobby, size=1, timeout=60.0):
        self.exchange = SimpleNamespace(clock=asyncio.get_running_loop().time, waited=0.0)
        self.go = asyncio.Event()
        self.task = asyncio.create_task(lobby.wait(self.exchange, size, self.go.wait, timeout))


async def refusal(guest):
    with pytest.raises(RefusedError) as refused:
        await guest.task
    assert refused.value.retry_after
    return refused.value.outcome


@pytest.mark.usefixtures("hurried")
async def test_a_wait_ends_with_what_was_waited_for_and_counts_as_waiting():
    guest = Guest(Lobby(QueueSettings))
    await asyncio.sleep(0.02)
    guest.go.set()
    assert await guest.task is True
    assert guest.exchange.waited >= 0.02


async def test_a_wait_is_over_in_time():
    guest = Guest(Lobby(QueueSettings), timeout=0.02)
    with pytest.raises(TimeoutError):
        await guest.task
    assert guest.exchange.waited >= 0.02


@pytest.mark.parametrize("limits", [{"max_requests": 2}, {"max_bytes": 20}])
async def test_so_many_requests_and_bytes_may_wait(limits):
    lobby = Lobby(lambda: QueueSettings(**limits))
    first, second = Guest(lobby, 10), Guest(lobby, 10)
    await asyncio.sleep(0)
    assert await refusal(Guest(lobby, 10)) is Outcome.QUEUE_FULL
    first.task.cancel()
    await asyncio.wait([first.task])
    third = Guest(lobby, 10)
    for guest in (second, third):
        guest.go.set()
        assert await guest.task is True, "whoever leaves makes room"


async def test_a_shutdown_refuses_who_waits_and_who_comes():
    lobby = Lobby(QueueSettings)
    waiting = Guest(lobby)
    await asyncio.sleep(0)
    lobby.drain()
    async with asyncio.timeout(1):
        assert await refusal(waiting) is Outcome.DRAINING
        assert await refusal(Guest(lobby)) is Outcome.DRAINING


async def test_a_wait_that_is_over_as_the_shutdown_begins_breaks_nothing():
    lobby = Lobby(QueueSettings)
    late = Guest(lobby, timeout=0.0)
    await asyncio.sleep(0)
    lobby.drain()
    assert await refusal(late) is Outcome.DRAINING
