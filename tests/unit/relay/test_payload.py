import asyncio
import tracemalloc
from types import SimpleNamespace

import pytest

from gateway.relay.payload import Allowance, BodyTimeoutError, BodyTooLargeError, NoRoomError, Payload, Room, read_body
from gateway.server.asgi import DIRECT, ClientGoneError
from gateway.wire.token_ids import IdsField
from tests.unit.server.messages import LEFT, piece, receiving

LARGE = 2 * Payload.SMALL


async def read(receive, *headers, limit=10, timeout=1.0, rate=1e6, room=None, flow="a", extensions=None):
    with (room or Room(lambda: 0)).payload(flow) as payload:
        allowance = Allowance(timeout, rate)
        return await read_body(
            {"headers": list(headers), "extensions": extensions or {}},
            receive,
            limit=limit,
            allowance=allowance,
            grown=payload.grown,
        )


async def test_bodies_that_arrive_hold_no_more_than_they_may_together():
    room = Room(lambda: 4 * LARGE)

    def large(flow, *, more):
        return read(receiving(piece(bytes(LARGE), more)), limit=10**9, room=room, flow=flow)

    held = [asyncio.create_task(large("a", more=True)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    small = receiving(piece(bytes(Payload.SMALL - 1), True), piece(b"x", False))
    assert len(await read(small, limit=10**9, room=room)) == Payload.SMALL
    with pytest.raises(NoRoomError):
        await large("a", more=False)
    assert len(await large("b", more=False)) == LARGE, "one flow leaves the others half of it"
    held.pop().cancel()
    await asyncio.sleep(0)
    assert len(await large("a", more=False)) == LARGE
    held.pop().cancel()
    await asyncio.sleep(0)


def test_bytes_that_came_fast_earn_no_time_beyond_the_longest_silence():
    allowance = Allowance(timeout=30.0, rate=1000)
    allowance.went(0.1, 30_000_000)
    assert allowance.left == 30.0
    allowance.went(29.0, 1)
    assert allowance.left == pytest.approx(1.0, abs=0.01)


async def test_a_body_that_arrives_alone_has_room():
    room = Room(lambda: 1)
    cuts = receiving(piece(bytes(LARGE), True), piece(bytes(LARGE), False))
    assert len(await read(cuts, limit=10**9, room=room)) == 2 * LARGE


@pytest.mark.parametrize("cuts", [[b"0123456789"], [b"01234", b"56789"], [b"", b"0123456789", b""]])
async def test_a_body_is_joined_however_it_comes(cuts):
    messages = [piece(cut, number < len(cuts) - 1) for number, cut in enumerate(cuts)]
    assert await read(receiving(*messages)) == b"0123456789"


async def test_a_body_in_tiny_pieces_takes_no_more_memory_than_another():
    left = 20_000

    async def tiny():
        nonlocal left
        left -= 1
        await asyncio.sleep(0)
        return piece(bytes((left % 251, 0)), left > 0)

    tracemalloc.start()
    try:
        assert len(await read(tiny, limit=10**9, timeout=60)) == 40_000
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


async def test_a_body_that_says_it_is_too_large_is_not_read():
    receive = receiving(piece(b"x" * 11, more=False))
    with pytest.raises(BodyTooLargeError) as refused:
        await read(receive, (b"content-length", b"11"))
    assert refused.value.size == 11
    assert receive.waiting


async def test_a_body_that_turns_out_too_large_is_read_no_further():
    receive = receiving(piece(b"x" * 8, more=True), piece(b"x" * 8, more=True), piece(b"x" * 8, more=True))
    with pytest.raises(BodyTooLargeError):
        await read(receive)
    assert len(receive.waiting) == 1
    with pytest.raises(BodyTooLargeError):
        await read(receiving(piece(b"x" * 11, more=False)))


async def test_of_a_body_that_was_given_up_nothing_is_kept_while_its_client_is_told():
    class Piece(bytes):
        def __del__(self):
            released.append(bytes(self))

    released = []
    with pytest.raises(BodyTooLargeError) as kept:
        await read(receiving(*[piece(Piece(b"aaaa"), True) for _ in range(4)]))
    assert released == [b"aaaa"] * 2, "all but the one that was too much, and that is one read of a socket"
    assert kept.value.size == 12


@pytest.mark.usefixtures("hurried")
async def test_a_client_that_leaves_or_falls_silent_is_noticed():
    with pytest.raises(ClientGoneError):
        await read(receiving(piece(b"x", more=True), LEFT))
    with pytest.raises(BodyTimeoutError):
        await read(receiving(piece(b"x", more=True)), timeout=30)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(("rate", "arrives"), [(9.0, True), (11.0, False)])
async def test_a_body_may_come_slowly_but_not_ever_more_slowly(rate, arrives):
    pieces = receiving(*[piece(b"x" * 10, more=number < 99) for number in range(100)])

    async def ten_bytes_a_second():
        await asyncio.sleep(1)
        return await pieces()

    reading = read(ten_bytes_a_second, limit=1000, timeout=5, rate=rate)
    if arrives:
        assert len(await reading) == 1000
    else:
        with pytest.raises(BodyTimeoutError):
            await reading
        assert 50 < len(pieces.waiting) < 60, "an eleventh late of each second, it comes four seconds late after 44"


async def test_a_body_that_is_here_whole_is_taken_within_its_limits():
    def here(body):
        return {DIRECT: SimpleNamespace(arrived=lambda: body)}

    assert await read(receiving(), extensions=here(b"ab"), limit=2) == b"ab"
    with pytest.raises(BodyTooLargeError):
        await read(receiving(), extensions=here(b"abc"), limit=2)
    with pytest.raises(NoRoomError):
        await read(receiving(), extensions=here(bytes(LARGE)), limit=LARGE, room=full())
    assert await read(receiving(piece(b"ab", more=False)), extensions=here(None), limit=2) == b"ab"


def full():
    """A room with one large body in it."""
    room = Room(lambda: 0)
    Payload(room._shares, "b").grown(LARGE)
    return room


def test_token_ids_count_as_memory_of_their_body_and_are_dropped_with_it():
    room = Room(lambda: 10 * LARGE)
    with room.payload("flow") as payload:
        payload.data = bytes(LARGE)
        payload.grown(LARGE)
        payload.keep(b"[1]" * LARGE)
        assert payload.ids
        payload.drop()
        assert payload.ids == b""
        payload.grown(10 * LARGE)  # all of it is free again


def test_token_ids_for_which_there_is_no_memory_are_not_kept():
    room = Room(lambda: 4 * LARGE)
    with room.payload("flow") as payload, room.payload("other") as other:
        other.grown(2 * LARGE)
        payload.data = bytes(LARGE)
        payload.grown(LARGE)
        payload.keep(bytes(4 * LARGE))
        assert payload.ids == b""
        assert payload.data


def test_a_body_with_token_ids_takes_the_place_of_the_one_without():
    with Room(lambda: 10 * LARGE).payload("flow") as payload:
        payload.data = b'{"a":1}'
        payload.keep(b"[1,2]")
        bodies = [payload.towards(field) for field in (IdsField.OWN, IdsField.OWN, IdsField.TRANSFER, None)]
        assert bodies == [
            b'{"a":1,"prompt_token_ids":[1,2]}',
            b'{"a":1,"prompt_token_ids":[1,2]}',
            b'{"a":1,"kv_transfer_params":{"prompt_token_ids":[1,2]}}',
            b'{"a":1}',
        ]
        assert payload.data == b'{"a":1}'
        assert payload.towards(IdsField.OWN) is payload.data
