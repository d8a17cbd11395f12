import asyncio
import json

import pytest

from gateway.ops.pictures import broadcast as module
from gateway.ops.pictures.broadcast import KEPT, Broadcast, TooManyError
from gateway.ops.pictures.picture import Point
from tests.unit.ops.pictures.pictures import picture
from tests.until import PATIENCE, until


class Source:
    """Makes a picture at each look, when it is let."""

    def __init__(self):
        self.looks = []
        self.silent = False
        self.turn = asyncio.Event()

    async def look(self, after):
        await self.turn.wait()
        self.turn.clear()
        self.looks.append(after)
        if self.silent:
            raise TimeoutError
        at = 1000.0 + len(self.looks)
        return picture(at, points=(Point(at, {}, {}, {}),))

    async def step(self):
        before = len(self.looks)
        self.turn.set()
        await until(lambda: len(self.looks) > before)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def source():
    return Source()


@pytest.fixture
async def broadcast(source):
    made = Broadcast(source.look, interval=0.0)
    yield made
    made.close()


def read(message):
    """Each event of a message: its name and its data."""
    found = []
    for event in message.decode().strip().split("\n\n"):
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def next_of(reader):
    async with asyncio.timeout(PATIENCE):
        return read(await anext(reader))


async def begin(broadcast, source, address="a"):
    """A reader that has its first picture."""
    reader = broadcast.follow(address)
    first = asyncio.ensure_future(next_of(reader))
    await asyncio.sleep(0)
    if broadcast._picture is None:
        await source.step()
    return reader, await first


async def test_a_reader_gets_a_picture_and_then_its_changes(broadcast, source):
    reader, ((event, whole),) = await begin(broadcast, source)
    assert (event, whole["at"], len(whole["points"])) == ("snapshot", 1001.0, 1)
    await source.step()
    assert await next_of(reader) == [("changes", {"at": 1002.0, "points": [[1002.0, {}, {}, {}]]})]
    assert source.looks == [0.0, 1001.0], "only the points that are new are asked for"


async def test_all_readers_share_one_look_and_the_same_bytes(broadcast, source):
    readers = [(await begin(broadcast, source))[0] for _ in range(3)]
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await asyncio.sleep(0)
    await source.step()
    messages = await asyncio.gather(*waiting)
    assert len({id(message) for message in messages}) == 1 or len(set(messages)) == 1
    assert len(source.looks) == 2


async def test_a_slow_reader_gets_what_it_missed_or_a_new_picture(broadcast, source):
    reader, _ = await begin(broadcast, source)
    for _ in range(KEPT):
        await source.step()
    assert [event for event, _ in await next_of(reader)] == ["changes"] * KEPT
    for _ in range(KEPT + 1):
        await source.step()
    ((event, whole),) = await next_of(reader)
    assert (event, whole["at"]) == ("snapshot", 1000.0 + len(source.looks))
    assert len(whole["points"]) == len(source.looks), "with its whole history"


async def test_nothing_is_made_while_nobody_looks(broadcast, source):
    reader, _ = await begin(broadcast, source)
    await reader.aclose()
    assert broadcast.readers == 0
    source.turn.set()
    await asyncio.sleep(0.02)
    assert len(source.looks) == 1
    _, ((event, _),) = await begin(broadcast, source)
    assert event == "snapshot"


async def test_silence_is_told_and_then_a_new_picture(broadcast, source):
    reader, _ = await begin(broadcast, source)
    source.silent = True
    await source.step()
    ((event, said),) = await next_of(reader)
    assert (event, "does not answer" in said["text"]) == ("silence", True)
    source.silent = False
    await source.step()
    assert [event for event, _ in await next_of(reader)] == ["snapshot"]


async def test_a_gateway_that_ends_ends_its_readers(broadcast, source):
    reader, _ = await begin(broadcast, source)
    broadcast.close()
    with pytest.raises(StopAsyncIteration):
        await anext(reader)
    assert broadcast.readers == 0


async def test_there_are_only_so_many_readers(broadcast, source, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1)
    await begin(broadcast, source)
    with pytest.raises(TooManyError):
        broadcast.follow("b")


async def test_there_are_no_more_if_all_ask_at_once(broadcast, source, monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    readers = [asyncio.ensure_future(anext(reader)) for reader in [broadcast.follow(address) for address in "abcd"]]
    await source.step()
    told = await asyncio.gather(*readers, return_exceptions=True)
    assert [isinstance(one, StopAsyncIteration) for one in told] == [False, False, True, True]
    assert broadcast.readers == 2


async def test_one_address_leaves_room_for_others(broadcast, source, monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    for _ in range(2):
        await begin(broadcast, source)
    with pytest.raises(TooManyError):
        broadcast.follow("a")
    await begin(broadcast, source, "b")


async def test_a_reader_that_does_not_read_makes_room(broadcast, source, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1)
    silent, _ = await begin(broadcast, source)
    with pytest.raises(TooManyError):
        broadcast.follow("b")
    monkeypatch.setattr(module, "SILENT", -1.0)
    reader, _ = await begin(broadcast, source, "b")
    assert broadcast.readers == 1
    with pytest.raises(StopAsyncIteration):  # should it read on after all
        await anext(silent)
    waiting = asyncio.ensure_future(next_of(reader))
    await asyncio.sleep(0)
    await source.step()
    assert [event for event, _ in await waiting] == ["changes"]


async def test_a_reader_that_waits_for_news_is_not_silent(broadcast, source, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1)
    monkeypatch.setattr(module, "SILENT", -1.0)
    reader, _ = await begin(broadcast, source)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    with pytest.raises(TooManyError):
        broadcast.follow("b")
    waiting.cancel()
