import asyncio
import gc
import weakref

import pytest

from gateway.relay.client_departure import while_connected
from gateway.relay.response import Response, State
from gateway.runtime.turnstile import Turnstile
from gateway.server.asgi import DIRECT, Body
from tests.unit.server.listening import GET, connected, serving
from tests.until import PATIENCE, until

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}


async def test_pieces_that_are_written_at_once_arrive_in_order_with_those_that_are_sent():
    async def app(scope, receive, send):
        body = Body(scope, send)
        await send(START)
        assert body.write(b"a")
        await send({"type": "http.response.body", "body": b"b", "more_body": True})
        assert body.write(b"c" * 20)
        await send(END)

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert await reader.readuntil(b"\r\n0\r\n\r\n") == b"1\r\na\r\n1\r\nb\r\n14\r\n" + b"c" * 20 + b"\r\n0\r\n\r\n"


async def test_a_chunk_leaves_in_the_frame_it_came_in_and_in_order():
    async def app(scope, receive, send):
        body = Body(scope, send)
        assert body.chunks() is None, "nothing has begun"
        await send(START)
        write = body.chunks()
        assert body.write(b"a")
        assert write(b"02;x=y\r\nbc\r\n")
        assert body.write(b"d")
        await send(END)
        assert body.chunks() is None, "it has ended"

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n0\r\n\r\n") == b"1\r\na\r\n02;x=y\r\nbc\r\n1\r\nd\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("get", "start"),
    [
        (GET.replace(b"HTTP/1.1", b"HTTP/1.0"), START),
        (GET.replace(b"GET", b"HEAD"), START),
        (GET, {**START, "headers": [(b"content-length", b"0")]}),
    ],
)
async def test_who_gets_no_chunks_gets_none_in_their_frame(get, start):
    said = asyncio.Future()

    async def app(scope, receive, send):
        await send(start)
        said.set_result(Body(scope, send).chunks())
        await send(END)

    async with serving(app) as listener, connected(listener) as (_, writer):
        writer.write(get)
        assert await asyncio.wait_for(said, PATIENCE) is None


async def test_a_client_of_http_1_0_gets_no_chunks():
    async def app(scope, receive, send):
        body = Body(scope, send)
        await send(START)
        assert body.write(b"a")
        await send({"type": "http.response.body", "body": b"bc", "more_body": True})
        assert body.write(b"d")
        await send({"type": "http.response.body", "body": b"e"})

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        assert b"transfer-encoding" not in head.lower(), "RFC 9112, 6.1"
        assert body == b"abcde"


async def test_a_client_of_http_1_0_is_told_a_length_that_is_known():
    async def app(_scope, _receive, send):
        await send({**START, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ab"})

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b"content-length: 2\r\n" in (await reader.read()).lower()


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_client_that_is_behind_is_told_of_and_waited_for(in_chunks):
    behind, caught_up = asyncio.Event(), asyncio.Event()
    written = 0

    async def app(scope, receive, send):
        nonlocal written
        body = Body(scope, send)
        await send(START)
        keeps_up = True
        chunk = b"10000\r\n" + bytes(2**16) + b"\r\n"
        while keeps_up and written < 2**26:
            keeps_up = body.chunks()(chunk) if in_chunks else body.write(bytes(2**16))
            written += 2**16
        behind.set()
        await body.drained()
        caught_up.set()
        assert body.write(b"x")
        await send(END)

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.transport.pause_reading()
        writer.write(GET)
        await behind.wait()
        assert written < 2**26
        assert not caught_up.is_set()
        writer.transport.resume_reading()
        received = await reader.readuntil(b"\r\n\r\n")
        received = 0
        while size := int(await reader.readline(), 16):
            received += len(await reader.readexactly(size + 2)) - 2
        assert received == written + 1
        assert caught_up.is_set()


async def test_what_is_written_to_a_client_that_has_left_is_dropped(caplog):
    left, said = asyncio.Event(), asyncio.Future()

    async def app(scope, receive, send):
        write = scope["extensions"][DIRECT].write
        await send(START)
        write_chunk = scope["extensions"][DIRECT].chunks()
        await receive()
        left.set()
        assert (await receive())["type"] == "http.disconnect"
        said.set_result([write(b"a") and write_chunk(b"1\r\na\r\n") for _ in range(10)])

    async with serving(app) as listener:
        async with connected(listener) as (_, writer):
            writer.write(GET)
            await left.wait()
        assert await asyncio.wait_for(said, 60) == [True] * 10, "nobody is waited for"
    assert not caplog.records, "asyncio warns of writing to nobody"


EMPTY = {**START, "headers": [(b"content-length", b"0")]}


@pytest.mark.parametrize(
    ("before", "after"),
    [([], [EMPTY, END]), ([START, END], []), ([EMPTY], [END])],
    ids=["not begun", "ended", "of a given length"],
)
async def test_only_the_body_of_a_chunked_answer_under_way_is_written_at_once(before, after):
    said = asyncio.Future()

    async def app(scope, receive, send):
        write = scope["extensions"][DIRECT].write
        for message in before:
            await send(message)
        try:
            write(b"a")
        except RuntimeError as error:
            said.set_result(str(error))
        for message in after:
            await send(message)

    async with serving(app) as listener, connected(listener) as (_, writer):
        writer.write(GET)
        assert "chunked answer" in await asyncio.wait_for(said, 60)


POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


async def test_a_body_is_taken_at_once_only_when_all_of_it_is_here():
    taken, begun = [], asyncio.Event()

    async def app(scope, receive, send):
        arrived = scope["extensions"][DIRECT].arrived
        taken.append(arrived())
        begun.set()
        while taken[-1] is None:
            await asyncio.sleep(0)
            taken.append(arrived())
        taken.append(arrived())
        await send(EMPTY)
        await send(END)

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(POST + b"ab")
        await begun.wait()
        writer.write(b"cd")
        await reader.readuntil(b"\r\n\r\n")
        assert set(taken[:-2]) == {None}
        assert taken[-2:] == [b"abcd", None], "and only once"
        taken.clear()
        writer.write(POST + b"abcd")
        await reader.readuntil(b"\r\n\r\n")
        assert taken[0] == b"abcd"


@pytest.mark.parametrize("how", ["closes", "closes its sending side", "has closed its sending side"])
async def test_who_waits_for_a_departure_is_told_of_it_once(how):
    told, begun, gone = [], asyncio.Event(), asyncio.Event()

    def left():
        told.append(how)
        gone.set()

    async def app(scope, receive, send):
        if how.startswith("has"):
            await until(lambda: scope["extensions"][DIRECT].half_closed)
        scope["extensions"][DIRECT].arrived()
        scope["extensions"][DIRECT].leaving(left)
        begun.set()
        await gone.wait()

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(POST + b"abcd")
        if how.startswith("has"):
            writer.write_eof()
        await begun.wait()
        if how == "closes":
            writer.close()
        elif not how.startswith("has"):
            writer.write_eof()
        if how != "closes":
            assert await reader.read() == b""
        await gone.wait()
        await until(lambda: not listener.connections)
        assert told == [how]


async def test_who_no_longer_waits_for_a_departure_is_not_told_and_an_answer_is_none():
    told, begun = [], asyncio.Event()

    async def app(scope, receive, send):
        scope["extensions"][DIRECT].arrived()
        end = scope["extensions"][DIRECT].leaving(lambda: told.append("left"))
        await send(EMPTY)
        await send(END)
        end()
        begun.set()

    async with serving(app) as listener:
        async with connected(listener) as (reader, writer):
            writer.write(POST + b"abcd")
            await reader.readuntil(b"\r\n\r\n")
            await begun.wait()
        await until(lambda: not listener.connections)
    assert not told


KEPT, HALF = POST + b"abcd", POST + b"ab"
CLOSED = (GET.replace(b"HTTP/1.1", b"HTTP/1.0"), GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))


@pytest.mark.parametrize(
    "request_",
    [
        KEPT,
        GET,
        GET.replace(b"GET", b"HEAD"),
        *CLOSED,
        HALF,
        HALF.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"),
    ],
    ids=["kept", "without a body", "HEAD", "1.0", "closed", "half a body", "continued"],
)
@pytest.mark.parametrize("status", [200, 204, 400])
async def test_a_whole_answer_is_what_its_head_and_its_body_are(request_, status):
    length, body = ((b"content-length", b"2"), b"ab") if status != 204 else ((b"x-none", b""), b"")
    headers = [(b"x-is", b'caf\xe9\t"a"'), length]

    async def answered(*, whole):
        async def app(scope, _receive, send):
            response = Response(scope, send)
            if whole:
                await response.whole(status, headers, body)
            else:
                await response.begin(status, headers)
                await response.end(body)
            assert (response.state, response.status) == (State.ENDED, status)

        async with serving(app) as listener, connected(listener) as (reader, writer):
            writer.write(request_)
            head = await reader.readuntil(b"\r\n\r\n")
            if request_ is KEPT:
                writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            if request_ not in CLOSED:
                writer.write_eof()
            return without_date(head), without_date(await reader.read())

    def without_date(data):
        return [line for line in data.split(b"\r\n") if not line.startswith(b"date")]

    assert await answered(whole=True) == await answered(whole=False)


async def test_a_whole_answer_leaves_at_once():
    async def app(scope, _receive, _send):
        assert scope["extensions"][DIRECT].whole(200, [(b"content-length", b"2")], b"ab")

    async with serving(app) as listener, connected(listener) as (reader, writer):
        for _ in range(2):
            writer.write(POST + b"abcd")
            assert (await reader.readuntil(b"\r\n\r\nab")).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("header", [(b"x", b"a\r\ny: b"), (b"x", b"a\nb"), (b"x\r", b"a"), (b"x", b"\0")])
async def test_no_header_of_a_whole_answer_makes_another(header):
    said = asyncio.Future()

    async def app(scope, _receive, send):
        try:
            scope["extensions"][DIRECT].whole(200, [header, (b"content-length", b"0")], b"")
        except RuntimeError as error:
            said.set_result(str(error))
        await send(EMPTY)
        await send(END)

    async with serving(app) as listener, connected(listener) as (_, writer):
        writer.write(GET)
        assert "control character" in await asyncio.wait_for(said, 60)


async def test_an_answered_request_leaves_nothing_to_the_garbage_collector():
    cycles = []

    async def app(scope, receive, send):
        cycles.append(weakref.ref(scope["extensions"][DIRECT]))
        response = Response(scope, send)
        with while_connected(scope, receive, Turnstile()):
            await response.whole(200, [(b"content-length", b"0")], b"")

    gc.disable()
    try:
        async with serving(app) as listener, connected(listener) as (reader, writer):
            for _ in range(3):
                writer.write(GET)
                await reader.readuntil(b"\r\n\r\n")
            await until(lambda: [cycle() is None for cycle in cycles[:2]] == [True, True])
    finally:
        gc.enable()


async def test_who_half_closed_gets_an_answer_that_waits_for_nothing_and_is_not_told_of():
    told, ended = [], asyncio.Event()

    async def app(scope, receive, send):
        arrived = scope["extensions"][DIRECT].arrived
        await until(lambda: scope["extensions"][DIRECT].half_closed)
        arrived()
        scope["extensions"][DIRECT].leaving(lambda: told.append("left"))
        await send({**START, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ab"})
        await asyncio.sleep(0)
        ended.set()

    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(POST + b"abcd")
        writer.write_eof()
        assert (await reader.read()).endswith(b"\r\n\r\nab")
        await ended.wait()
        assert not told
