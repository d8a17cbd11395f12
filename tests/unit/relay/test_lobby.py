import asyncio

import pytest

from gateway.admission.outcomes import Outcome
from gateway.config.admission import QueueSettings
from gateway.relay.client_identity import Client
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.lobby import Lobby


class Guest:
    """A request that waits until it is let go."""

    def __init__(self, lobby, size=1, timeout=60.0, flow="a"):
        self.exchange = Exchange.begin({"path": "/", "headers": []}, None, asyncio.get_running_loop().time, None)
        self.exchange.client = Client(flow)
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
    assert guest.exchange.waited == pytest.approx(0.02, rel=0.1)


@pytest.mark.usefixtures("hurried")
async def test_a_wait_is_over_in_time():
    guest = Guest(Lobby(QueueSettings), timeout=0.02)
    with pytest.raises(TimeoutError):
        await guest.task
    assert guest.exchange.waited == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("limits", [{"max_requests": 3}, {"max_bytes": 30}])
async def test_so_many_requests_and_bytes_may_wait(limits):
    lobby = Lobby(lambda: QueueSettings(**limits))
    first, second = Guest(lobby, 10, flow="a"), Guest(lobby, 10, flow="b")
    await asyncio.sleep(0)
    assert await refusal(Guest(lobby, 10, flow="c")) is Outcome.QUEUE_FULL
    first.task.cancel()
    await asyncio.wait([first.task])
    third = Guest(lobby, 10, flow="c")
    for guest in (second, third):
        guest.go.set()
        assert await guest.task is True, "whoever leaves makes room"


@pytest.mark.parametrize("limits", [{"max_requests": 1}, {"max_bytes": 10}])
async def test_the_first_may_take_all_of_the_room(limits):
    lobby = Lobby(lambda: QueueSettings(**limits))
    first = Guest(lobby, 10)
    await asyncio.sleep(0)
    assert await refusal(Guest(lobby, 10, flow="b")) is Outcome.QUEUE_FULL
    first.go.set()
    assert await first.task is True


@pytest.mark.parametrize("limits", [{"max_requests": 16}, {"max_bytes": 160}])
async def test_one_flow_gets_at_most_half_of_what_the_others_leave(limits):
    lobby = Lobby(lambda: QueueSettings(**limits))
    many = [Guest(lobby, 10, flow="many") for _ in range(16)]
    await asyncio.sleep(0)
    assert [guest.task.done() for guest in many].count(False) == 8
    others = [Guest(lobby, 10, flow=name) for name in "bcde"]
    await asyncio.sleep(0)
    assert not any(guest.task.done() for guest in others)
    for guest in many + others:
        guest.go.set()
    await asyncio.wait([guest.task for guest in many + others])
    again = [Guest(lobby, 10, flow="many") for _ in range(8)]
    await asyncio.sleep(0)
    assert not any(guest.task.done() for guest in again), "who has left holds nothing"
    for guest in again:
        guest.task.cancel()
    await asyncio.wait([guest.task for guest in again])
    assert all(isinstance(guest.task.exception(), RefusedError | None) for guest in many)


async def test_a_shutdown_refuses_who_waits_and_who_comes():
    lobby = Lobby(QueueSettings)
    waiting = Guest(lobby, timeout=600.0)
    await asyncio.sleep(0)
    lobby.drain()
    async with asyncio.timeout(60):
        assert await refusal(waiting) is Outcome.DRAINING
        assert await refusal(Guest(lobby, timeout=600.0)) is Outcome.DRAINING


async def test_a_wait_that_is_over_as_the_shutdown_begins_breaks_nothing():
    lobby = Lobby(QueueSettings)
    late = Guest(lobby, timeout=0.0)
    await asyncio.sleep(0)
    lobby.drain()
    assert await refusal(late) is Outcome.DRAINING
