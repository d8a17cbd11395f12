"""Over real sockets, with those in between who should not be there."""

import asyncio
import contextlib
import functools
import gc
import random
import socket
import threading
import time
from typing import Any, ClassVar
from unittest.mock import Mock

import msgspec
import pytest
import structlog
import uvloop

from gateway.admission.events import EndpointId
from gateway.app.parent import Parent
from gateway.tier.channel import LOGGED_EVERY, MOST_UNPROVEN, PROVEN_WITHIN, Entrance, UnprovenError, connect
from gateway.tier.frames import Gone, Hello, Left, Moved, Welcome, from_front, from_owner
from gateway.tier.line import Line
from gateway.tier.owner_link import Link
from gateway.tier.seal import NONCE, TAG, Claim, Role, Session, SharedKey
from tests.until import until

KEY = SharedKey(b"k" * 32)
FRONT = Claim(Role.FRONT, "f", (1, 2), b"settings", b"templates")
OWNER = Claim(Role.OWNER, "o", (1, 2), b"settings", b"templates")
HERE = EndpointId("here")
PROOF = NONCE + TAG
SOON = 5.0


class Owner:
    """It listens, and keeps what members say."""

    def __init__(self, claim=OWNER, key=KEY):
        self.peers, self.lines, self.taken, self.lost = [], [], [], 0
        self.entrance = Entrance(key, lambda: claim, self._accept)

    def _accept(self, peer):
        self.peers.append(peer)
        self.lines.append(Line(from_front, lambda _line, messages: self.taken.extend(messages), self._end))
        return self.lines[-1]

    def _end(self, _line):
        self.lost += 1

    async def open(self):
        self.server = await self.entrance.open("127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def close(self):
        self.entrance.close()
        for line in self.lines:
            line.cut()
        self.server.close()
        await ended()


class Front:
    """A line of a front, and what it passes on."""

    OPEN: ClassVar[list[Any]] = []
    """Fronts and strangers of a test."""

    def __init__(self, claim=FRONT, key=KEY):
        self.claim, self.key = claim, key
        self.taken, self.lost, self.made = [], 0, 0
        self.line = Line(from_owner, lambda _line, messages: self.taken.extend(messages), self._end)

    def _end(self, _line):
        self.lost += 1

    def cut(self):
        self.line.cut()

    def _line(self):
        self.made += 1
        return self.line

    async def connect(self, port, host="127.0.0.1"):
        self.OPEN.append(self)
        return await connect(host, port, self._line, key=self.key, claim=self.claim)


@contextlib.asynccontextmanager
async def opened(**told):
    owner = await Owner(**told).open()
    try:
        yield owner
    finally:
        await owner.close()


@pytest.fixture(autouse=True)
async def left():
    """All that a test connected is gone after it."""
    yield
    while Front.OPEN:
        Front.OPEN.pop().cut()
    await ended()


@pytest.fixture
async def owner():
    async with opened() as owner:
        yield owner


@contextlib.asynccontextmanager
async def serving(serve):
    """Somebody listens who is no member; its port."""
    writers = []

    async def served(reader, writer):
        writers.append(writer)
        with contextlib.suppress(OSError):
            await serve(reader, writer)

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await ended()


async def ended():
    """Let connections that were cut end on both sides."""
    for _ in range(3):
        await asyncio.sleep(0.005)


class Stranger(asyncio.Protocol):
    """A connection of nobody's."""

    def __init__(self):
        self.heard, self.ended = b"", asyncio.Event()

    @classmethod
    async def at(cls, port, said=b""):
        _, stranger = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        if said:
            stranger.transport.write(said)
        return stranger

    def connection_made(self, transport):
        self.transport = transport
        Front.OPEN.append(self)

    def cut(self):
        self.transport.abort()

    def data_received(self, data):
        self.heard += data

    def connection_lost(self, _error):
        self.ended.set()

    async def end(self):
        async with asyncio.timeout(SOON):
            await self.ended.wait()
        return self.heard


class Between:
    """Somebody between a front and its owner. `change` makes of each piece that comes what goes on.

    Attributes:
        recorded: what each side said: the front's under True.
    """

    def __init__(self, port, change):
        self.to, self.change = port, change
        self.recorded = {True: [], False: []}

    async def serve(self, reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", self.to)
        await asyncio.gather(self._carry(reader, back, up=True), self._carry(there, writer, up=False))

    async def _carry(self, reader, writer, *, up):
        try:
            while data := await reader.read(2**16):
                self.recorded[up].append(data)
                for piece in self.change(up, self.recorded[up]):
                    writer.write(piece)
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def between(port, change=lambda _up, recorded: recorded[-1:]):
    middle = Between(port, change)
    async with serving(middle.serve) as middle.port:
        yield middle


# Between members.


async def talk_both_ways():
    owner, front = await Owner().open(), Front()
    peer = await front.connect(owner.port)
    assert (peer.claim, peer.version, owner.peers[0].claim) == (OWNER, 2, FRONT)
    many = Moved("m", tuple((number, number) for number in range(100_000)))
    front.line.send(Left(1), many)
    owner.lines[0].send(Gone(HERE))
    await until(lambda: len(owner.taken) == 2 and front.taken)
    assert owner.taken == [Left(1), many]
    assert front.taken == [Gone(HERE)]
    await front.line.taken()
    front.line.cut()
    await until(lambda: owner.lost == front.lost == 1)
    await owner.close()


async def test_lines_talk_over_a_channel():
    await talk_both_ways()


def test_lines_talk_over_a_channel_in_the_loop_that_serves():
    uvloop.run(talk_both_ways())


class Closes(asyncio.Protocol):
    """Nobody decides here."""

    def connection_made(self, transport):
        transport.close()


async def test_a_member_that_is_not_taken_is_left_in_peace():
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    entrance, front = Entrance(KEY, lambda: OWNER, lambda _peer: Closes()), Front()
    server = await entrance.open("127.0.0.1", 0)
    await front.connect(server.sockets[0].getsockname()[1])
    await until(lambda: front.lost == 1)
    assert errors == []
    server.close()
    await ended()


async def test_a_front_is_linked_to_its_owner_over_a_channel(owner):
    link = Link(
        7,
        functools.partial(connect, "127.0.0.1", owner.port, key=KEY, claim=FRONT),
        Mock(),
        clock=time.monotonic,
        progressed=Mock(),
        patience=lambda: 1.0,
        figures=Mock(),
        parent=Parent(),
    )
    running = asyncio.create_task(link.run())
    await until(lambda: owner.taken)
    assert [(type(hello), hello.front) for hello in owner.taken] == [(Hello, 7)]
    owner.lines[0].send(Welcome())
    await until(link.connected.is_set)
    owner.lines[0].cut()
    await until(lambda: len(owner.taken) == 2)
    running.cancel()
    await asyncio.wait([running])
    link.close()


async def test_small_frames_leave_at_once_and_a_machine_that_is_gone_is_noticed(owner):
    front = Front()
    await front.connect(owner.port)
    for line in (front.line, owner.lines[0]):
        used = line._transport._transport.get_extra_info("socket")
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


async def test_an_owner_sees_which_settings_differ(owner):
    front = Front(claim=msgspec.structs.replace(FRONT, settings=b"others"))
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert (await front.connect(owner.port)).differs == ("settings",)
    assert owner.peers[0].differs == ("settings",)
    assert [(entry["member"], entry["differs"]) for entry in logs] == [("f", ("settings",))], "once a minute"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_members_that_cannot_talk_say_why_on_both_sides(run):
    async def disagree():
        front = Front(claim=msgspec.structs.replace(FRONT, versions=(3, 4)))
        why = "member o speaks versions 1 to 2 of the tier's messages, this one 3 to 4"
        async with opened() as owner:
            with structlog.testing.capture_logs() as logs:
                with pytest.raises(UnprovenError, match=why):
                    await front.connect(owner.port)
                await until(lambda: logs)
            assert "member f speaks versions 3 to 4" in logs[0]["reason"]
            assert (owner.peers, front.made, owner.entrance.strangers) == ([], 0, 0)
        Front.OPEN.clear()

    run(disagree())


async def test_who_has_another_key_is_told_nothing_and_guesses_it(owner):
    front = Front(key=SharedKey(b"x" * 32))
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(UnprovenError, match=f"127.0.0.1:{owner.port}: it ended the connection without a word: .* key"),
    ):
        await front.connect(owner.port)
    assert [entry["reason"] for entry in logs] == ["it has not the key of this tier"]
    assert (owner.peers, front.made) == ([], 0)


async def test_an_owner_that_has_another_key_is_not_talked_to():
    async def serve(reader, writer):
        writer.write(bytes(PROOF))
        await reader.read()

    front = Front()
    async with serving(serve) as port:
        with pytest.raises(UnprovenError, match="it has not the key of this tier"):
            await front.connect(port)
    assert front.made == 0


async def test_an_owner_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("gateway.tier.channel.PROVEN_WITHIN", 0.05)
    gone = asyncio.Event()

    async def serve(reader, _writer):
        with contextlib.suppress(OSError):
            await reader.read()
        gone.set()

    async with serving(serve) as port:
        with pytest.raises(TimeoutError, match=f"127.0.0.1:{port}: it has not proved itself within"):
            await Front().connect(port)
        await until(gone.is_set)


async def test_nobody_there_is_an_error_of_the_network(owner):
    await owner.close()
    with pytest.raises(ConnectionRefusedError):
        await Front().connect(owner.port)


async def test_a_connection_that_is_not_waited_for_any_more_is_ended():
    heard, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader, _writer):
        await reader.readexactly(PROOF)
        heard.set()
        with contextlib.suppress(OSError):
            await reader.read()
        gone.set()

    async with serving(serve) as port:
        task = asyncio.create_task(Front().connect(port))
        await until(heard.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(gone.is_set, timeout=PROVEN_WITHIN / 2)


# Strangers.


async def test_random_bytes_get_nothing(owner):
    chance = random.Random(1)  # noqa: S311
    strangers = [await Stranger.at(owner.port, chance.randbytes(chance.randint(PROOF, 4096))) for _ in range(100)]
    assert [await stranger.end() for stranger in strangers] == [b""] * 100
    assert (owner.peers, owner.taken) == ([], [])
    assert owner.entrance.strangers == 100


async def test_strangers_fill_no_log(owner):
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            await (await Stranger.at(owner.port, bytes(PROOF))).end()
    assert len(logs) == 1
    owner.entrance._logged_at[None] -= LOGGED_EVERY
    with structlog.testing.capture_logs() as logs:
        await (await Stranger.at(owner.port, bytes(PROOF))).end()
    assert [entry["strangers"] for entry in logs] == [21]


@pytest.mark.parametrize("said", [b"", b"half of a proof"])
async def test_who_does_not_prove_itself_in_time_is_cut_off(owner, monkeypatch, said):
    monkeypatch.setattr("gateway.tier.channel.PROVEN_WITHIN", 0.05)
    with structlog.testing.capture_logs() as logs:
        assert await (await Stranger.at(owner.port, said)).end() == b""
    assert owner.entrance._unproven == {}
    assert logs == [], "it may ask no more than whether anybody is there"


async def test_half_a_handshake_is_cut_off_in_time(owner, monkeypatch):
    monkeypatch.setattr("gateway.tier.channel.PROVEN_WITHIN", 0.05)
    opening = Session(KEY, FRONT, bytes(NONCE), calls=True).opening
    assert len(await (await Stranger.at(owner.port, opening)).end()) == PROOF
    assert owner.peers == []


async def test_a_thousand_silent_connections_keep_no_member_out(owner):
    silent = [await Stranger.at(owner.port) for _ in range(1000)]
    await until(lambda: sum(not stranger.ended.is_set() for stranger in silent) == MOST_UNPROVEN)
    started = asyncio.get_running_loop().time()
    front = Front()
    await front.connect(owner.port)
    assert asyncio.get_running_loop().time() - started < PROVEN_WITHIN / 2
    assert len(owner.entrance._unproven) < MOST_UNPROVEN
    assert b"".join([stranger.heard for stranger in silent]) == b""


async def test_a_recorded_session_does_nothing_again(owner):
    async with between(owner.port) as middle:
        front = Front()
        await front.connect(middle.port)
        front.line.send(Left(1))
        await until(lambda: owner.taken)
        recorded = middle.recorded[True]
    replayed = await Stranger.at(owner.port, recorded[0])
    await until(lambda: len(replayed.heard) == PROOF)
    replayed.transport.write(b"".join(recorded[1:]))
    assert len(await replayed.end()) == PROOF
    assert await (await Stranger.at(owner.port, b"".join(recorded))).end() == b""
    assert (len(owner.peers), owner.taken) == (1, [Left(1)])


def _altered(data):
    return data[:-1] + bytes([data[-1] ^ 1])


AIM = 3
"""Number of the piece that is changed on its way: after proof, claim, and one message that arrives."""
CHANGES = {
    "drops": lambda sent: {AIM: []},
    "repeats": lambda sent: {AIM: [sent[-1], sent[-1]]},
    "alters": lambda sent: {AIM: [_altered(sent[-1])]},
    "reorders": lambda sent: {AIM: [], AIM + 1: [sent[-1], sent[-2]]},
    "sends an earlier one for": lambda sent: {AIM: [sent[-2]]},
    # The whole tag: a single byte of it would be the next record's first one by chance, once in 256 times.
    "cuts the end off": lambda sent: {AIM: [sent[-1][:-TAG]]},
}


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_what_was_changed_on_the_way_ends_the_connection_and_is_not_heard(owner, up, change):
    def changed(way, sent):
        return change(sent).get(len(sent) - 1, sent[-1:]) if way is up and len(sent) > AIM else sent[-1:]

    front = Front()
    said = [Left(number) for number in range(4)] if up else [Gone(f"{number}") for number in range(4)]
    async with between(owner.port, changed) as middle:
        await front.connect(middle.port)
        line, other = (front.line, owner) if up else (owner.lines[0], front)
        with structlog.testing.capture_logs() as logs:
            for number, message in enumerate(said):
                line.send(message)
                await until(lambda number=number: other.lost or len(middle.recorded[up]) > number + 2)
            await until(lambda: other.lost)
    assert other.taken in (said[: AIM - 2], said[: AIM - 1] if change is CHANGES["repeats"] else None)
    errors = [entry["reason"] for entry in logs if entry["log_level"] == "error"]
    assert errors == ["what it said was changed on the way"]


@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize("up", [True, False])
async def test_a_proof_or_a_claim_that_was_changed_on_the_way_is_none(owner, up, piece):
    def changed(way, sent):
        return [_altered(sent[-1])] if (way, len(sent) - 1) == (up, piece) else sent[-1:]

    front = Front()
    async with between(owner.port, changed) as middle:
        with pytest.raises(UnprovenError):
            await front.connect(middle.port)
    assert (front.made, owner.taken) == (0, [])


async def test_a_mirror_is_no_owner():
    async def serve(reader, writer):
        while data := await reader.read(100):
            writer.write(data)

    async with serving(serve) as port:
        with pytest.raises(UnprovenError, match="not the key"):
            await Front().connect(port)


class Turns(asyncio.SelectorEventLoop):
    """Keeps the CPU time of its longest turn: what other threads and processes do counts for nothing."""

    longest = 0.0

    def _run_once(self):
        start = time.thread_time()
        super()._run_once()
        self.longest = max(self.longest, time.thread_time() - start)


@pytest.fixture
def collected():
    """No turn has to look through what earlier tests left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def test_no_attack_blocks_the_loop(collected):
    loop, garbage = Turns(), random.Random(2).randbytes(2**20)  # noqa: S311
    running = threading.Thread(target=loop.run_forever)
    running.start()

    def there(work):
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    try:
        owner = Owner()
        await there(owner.open())
        for said in [b""] * 300 + [garbage] * 50 + [b"\xff" * (PROOF - 1)] * 50:
            await Stranger.at(owner.port, said)
        front = Front()
        await front.connect(owner.port)
        front.line.send(Left(1))
        await until(lambda: owner.taken)
        await there(owner.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()
    assert 0 < loop.longest < 0.05
