import asyncio
import json
import socket
import struct
import sys

import pytest

from gateway.server import server
from gateway.server.http_protocol import LimitedProtocol
from tests.clock import unhindered
from tests.unit.server.listening import GET, answer, connected, serving
from tests.until import PATIENCE, until

UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


class App:
    """Answers each request with its number, and takes down what it got."""

    def __init__(self):
        self.scopes = []
        self.bodies = []
        self.told = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, scope, receive, send):
        number = len(self.scopes)
        self.scopes.append(scope)
        self.bodies.append(b"")
        if scope["path"] != "/unread":
            more = True
            while more:
                message = await receive()
                self.told.append(message["type"])
                self.bodies[number] += message.get("body", b"")
                more = message.get("more_body", False)
        if scope["path"] == "/asks":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.told.append("left")
            return
        await self.go.wait()
        body = b"%d" % number
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    "framed", [b"content-length: %d\r\n\r\n%b", b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"]
)
async def test_an_upgrade_is_ignored_and_a_body_stays_a_body(framed):
    app = App()
    hidden = GET.replace(b"/ ", b"/hidden ")
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + UPGRADE + framed % (len(hidden), hidden) + GET)
        assert [(await answer(reader))[1], (await answer(reader))[1]] == [b"0", b"1"]
    assert app.bodies == [hidden, b""]
    assert [scope["path"] for scope in app.scopes] == ["/", "/"]


async def test_a_connect_is_refused_and_what_follows_is_not_read():
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        status, body = await answer(reader)
        assert status == b"HTTP/1.1 405 Method Not Allowed"
        assert "CONNECT" in json.loads(body)["error"]["message"]
        assert await reader.read() == b""
    assert app.scopes == []


async def test_a_trailer_is_no_header():
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nok\r\n0\r\nauthorization: Bearer late\r\n\r\n")
        await answer(reader)
    assert app.bodies == [b"ok"]
    assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]


async def test_ten_thousand_requests_sent_ahead_are_answered_in_order_and_wait_outside(monkeypatch):
    most = 0
    full = asyncio.Event()
    read_on = LimitedProtocol._read_on

    def watched(self):
        nonlocal most
        most = max(most, len(self._buffer))
        read_on(self)
        if self.flow.read_paused:
            full.set()

    monkeypatch.setattr(LimitedProtocol, "_read_on", watched)
    app = App()
    app.go.clear()
    number = 10_000
    flood = GET.replace(b"host", b"x-some: %b\r\nhost" % (b"x" * 60)) * number
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(flood)
        await full.wait()
        assert len(app.scopes) == 1
        app.go.set()
        for expected in range(number):
            assert (await answer(reader))[1] == b"%d" % expected
    assert most < 700_000 < len(flood)


@pytest.fixture
def half_closed(monkeypatch):
    """Set once a client is seen to have closed its sending side."""
    heard = asyncio.Event()
    eof_received = LimitedProtocol.eof_received
    monkeypatch.setattr(LimitedProtocol, "eof_received", lambda self: (heard.set(), eof_received(self))[1])
    return heard


async def test_a_client_that_half_closes_is_answered_by_whoever_does_not_ask_whether_it_is_there(half_closed):
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        app.go.clear()
        writer.write(GET + GET)
        writer.write_eof()
        await half_closed.wait()
        app.go.set()
        assert [(await answer(reader))[1], (await answer(reader))[1]] == [b"0", b"1"]
        assert await reader.read() == b""
    assert app.told == ["http.request", "http.request"]


async def test_who_asks_is_told_that_a_client_that_half_closes_has_left():
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(GET.replace(b"/ ", b"/asks "))
        await until(lambda: app.told)
        writer.write_eof()
        assert await reader.read() == b""
    assert app.told == ["http.request", "left"]


@pytest.mark.parametrize("idles_after", [0, 1])
async def test_empty_lines_keep_no_connection_open(idles_after, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.2)
    async with serving(App(), body_timeout=0.2) as listener, connected(listener) as (reader, writer):
        for _ in range(idles_after):
            writer.write(GET)
            await answer(reader)
        closed = asyncio.create_task(reader.read())
        async with asyncio.timeout(60):
            while not closed.done():
                writer.write(b"\r\n")
                await asyncio.sleep(0.02)
        # A reset, where a line crossed the end.
        assert isinstance(closed.exception(), ConnectionResetError) or closed.result() == b""


async def test_a_body_that_the_answer_did_not_wait_for_is_dropped_or_ends_the_connection():
    app = App()
    unread = b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
    async with serving(app, body_timeout=0.2) as listener, connected(listener) as (reader, writer):
        writer.write(unread)
        assert (await answer(reader))[1] == b"0"
        writer.write(b"0123456789" + GET + unread + b"01234")
        assert (await answer(reader))[1] == b"1"
        assert (await answer(reader))[1] == b"2"
        assert await reader.read() == b"", "the rest of the last body did not come"
    assert app.bodies == [b"", b"", b""]


async def test_who_asks_before_sending_a_body_and_is_answered_at_once_cannot_send_it_any_more():
    async with serving(App()) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in head
        assert await reader.read() == b"0"


@pytest.mark.parametrize("after", [GET, b""])
@pytest.mark.parametrize("method", [b"GET / ", b"HEAD / ", b"POST / "])
async def test_who_asks_for_the_end_of_the_connection_gets_it_with_or_without_a_body(method, after):
    app = App()
    last = GET.replace(b"GET / ", method).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(last + after)
        answered = await reader.read()
        assert answered.count(b"HTTP/1.1 200 ") == 1
        assert b"\r\nconnection: close\r\n" in answered
    assert len(app.scopes) == 1


async def test_a_body_that_is_not_framed_as_it_must_be_is_answered():
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"
        assert await reader.read() == b""
    assert app.told == ["http.disconnect"]


PARSED = b"POST / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nx-large: " + b"x" * 2000, 431, "over 1000 bytes"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431, "over 1000 bytes"),
        (b"nonsense\r\n\r\n", 400, "not valid HTTP"),
        (b"GET / HTTP/1.1\nhost: x\n\n", 400, "not valid HTTP"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: y\n\nz: a\r\n\r\n", 400, "not valid HTTP"),
        (b"GET http://[/ HTTP/1.1\r\nhost: x\r\n\r\n", 400, "not valid"),
        (b"GET http://user@x/ HTTP/1.1\r\nhost: x\r\n\r\n", 400, "Authorization"),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400, "not valid"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505, "HTTP/1.1 and HTTP/1.0"),
        (b"GET / HTTP/0.9\r\nhost: x\r\n\r\n", 505, "HTTP/1.1 and HTTP/1.0"),
        (PARSED + b"transfer-encoding: gzip\r\n\r\n", 400, "not valid HTTP"),
        (PARSED + b"transfer-encoding: gzip, chunked\r\n\r\n", 501, "chunked"),
    ],
)
async def test_a_head_that_is_not_served_is_answered_once_and_what_follows_is_dropped(sent, status, says):
    app = App()
    async with serving(app, max_header_bytes=1000) as listener, connected(listener) as (reader, writer):
        writer.write(sent)
        head, body = await answer(reader)
        assert int(head.split()[1]) == status
        assert says in json.loads(body)["error"]["message"]
        writer.write(GET)
        assert await reader.read() == b""
    assert app.scopes == []


async def test_a_head_may_come_in_pieces_after_empty_lines_and_after_another_request():
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        for number in range(2):
            heads = len(app.scopes)
            for piece in (b"\r\n\r\nGE", b"T /a%20b?c=%20 HTT", b"P/1.1\r\nhost: x\r", b"\n\r", b"\n"):
                assert len(app.scopes) == heads
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            assert (await answer(reader))[1] == b"%d" % number
    for scope in app.scopes:
        assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b", b"/a%20b", b"c=%20")


@pytest.mark.parametrize("before", [b"", GET])
async def test_a_head_that_does_not_come_to_its_end_in_time_is_told_so(before):
    async with serving(App(), body_timeout=0.1) as listener, connected(listener) as (reader, writer):
        writer.write(before + GET[:-2])
        if before:
            assert (await answer(reader))[1] == b"0"
        status, body = await answer(reader)
        assert status == b"HTTP/1.1 408 Request Timeout"
        assert "within 0.1 s" in json.loads(body)["error"]["message"]
        assert await reader.read() == b""


async def test_a_body_of_more_chunks_than_are_taken_at_once_arrives_whole():
    app = App()
    chunks = 10_000
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(PARSED + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n" + GET)
        assert (await answer(reader))[1] == b"0"
        assert (await answer(reader))[1] == b"1"
    assert app.bodies == [b"x" * chunks, b""]


async def test_a_body_that_nobody_takes_is_not_read_on(monkeypatch):
    full, held = asyncio.Event(), []

    async def waits(scope, receive, send):
        await full.wait()
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        text = b"%d" % len(body)
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    take_body = LimitedProtocol._take_body

    def watched(self):
        ended = take_body(self)
        held.append(len(self.cycle.body))
        if self.flow.read_paused:
            full.set()
        return ended

    monkeypatch.setattr(LimitedProtocol, "_take_body", watched)
    size = 2**24
    async with serving(waits) as listener, connected(listener) as (reader, writer):
        writer.write(PARSED + b"content-length: %d\r\n\r\n" % size + bytes(size))
        await full.wait()
        assert max(held) < 2**20
        assert (await answer(reader))[1] == b"%d" % size


async def test_a_body_that_goes_wrong_in_the_middle_of_its_answer_ends_the_connection():
    left = asyncio.Event()

    async def answers_at_once(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with serving(answers_at_once) as listener, connected(listener) as (reader, writer):
        writer.write(PARSED + b"transfer-encoding: chunked\r\n\r\n")
        await reader.readuntil(b"begun\r\n")
        writer.write(b"zz\r\n")
        assert await reader.read() == b"", "an error would be taken for a part of the answer"
        await left.wait()


async def test_a_client_that_closed_its_side_after_a_wrong_request_is_not_waited_for(half_closed):
    app = App()
    app.go.clear()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(GET + b"nonsense\r\n\r\n")
        writer.write_eof()
        await half_closed.wait()
        app.go.set()
        began = unhindered()
        assert (await answer(reader))[1] == b"0"
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"
        assert await reader.read() == b""
        await until(lambda: not listener.connections)
        assert unhindered() - began < 1


async def test_one_that_leaves_while_it_is_served_is_not_answered_any_more():
    app = App()
    app.go.clear()
    async with serving(app) as listener:
        async with connected(listener) as (_, writer):
            writer.write(GET)
            await until(lambda: app.scopes)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: not listener.connections)
        app.go.set()
        async with connected(listener) as (reader, writer):
            writer.write(GET)
            assert (await answer(reader))[1] == b"1"


async def test_a_connection_keeps_its_attributes_in_little_room():
    """Python shares the names of up to 30 attributes; with one more, each connection takes 1.3 KB for them."""
    told = asyncio.Future()

    async def app(_scope, _receive, send):
        (connection,) = listener._server.server_state.connections
        told.set_result(sys.getsizeof(vars(connection)))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(app) as listener, connected(listener) as (_, writer):
        writer.write(GET)
        assert await asyncio.wait_for(told, PATIENCE) < 1000
