import asyncio
import socket
from types import SimpleNamespace

import pytest

from gateway.server import accepting
from gateway.server.accepting import Accepting


class Loads:
    def __init__(self):
        self.fewer = False
        self.noted = []
        self.left = False

    def note(self, connections):
        self.noted.append(connections)

    def fewer_elsewhere(self, _connections):
        return self.fewer

    def leave(self):
        self.left = True


@pytest.fixture
async def front():
    listening = socket.create_server(("127.0.0.1", 0))
    made = []
    loads = Loads()

    def make():
        made.append(asyncio.Protocol())
        return made[-1]

    under_test = Accepting(listening, make, connections=lambda: len(made), loads=loads)
    yield SimpleNamespace(accepting=under_test, listening=listening, made=made, loads=loads)
    under_test.close()
    listening.close()


def connect(front, count):
    return [socket.create_connection(front.listening.getsockname()) for _ in range(count)]


async def turns(until):
    async with asyncio.timeout(60):
        while not until():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_each_turn_takes_one_connection_so_that_others_get_theirs(front):
    clients = connect(front, 3)
    await turns(lambda: len(front.made) == 3)
    assert len(front.loads.noted) >= 3, "one look for each"
    for client in clients:
        client.close()


async def test_a_front_with_fewer_goes_first_and_what_it_leaves_is_taken(front, monkeypatch):
    monkeypatch.setattr(accepting, "_DEFERENCE", 0.2)  # else over on a busy machine before this one looks
    front.loads.fewer = True
    (client,) = connect(front, 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert front.made == []
    await turns(lambda: len(front.made) == 1)  # nobody else took it
    client.close()


async def test_a_closed_front_takes_nothing_and_counts_no_more(front):
    front.loads.fewer = True
    (client,) = connect(front, 1)
    await asyncio.sleep(0)
    front.accepting.close()
    await asyncio.sleep(0.01)
    assert front.made == []
    assert front.loads.left
    client.close()
