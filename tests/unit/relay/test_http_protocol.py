import asyncio
import contextlib
import json

import pytest

from gateway.config.settings import ServerSettings
from gateway.relay import server
from gateway.relay.http_protocol import LimitedProtocol
from gateway.relay.server import Listener, bind
from tests.until import until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
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


@contextlib.asynccontextmanager
async def serving(app, **settings):
    listener = Listener(app, bind("127.0.0.1", 0), ServerSettings(**settings))
    listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def connected(listener):
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        async with asyncio.timeout(20):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader):
    """The status line and the body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head.split(b"\r\n")[0], await reader.readexactly(length)


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


async def test_a_client_that_half_closes_is_answered_by_whoever_does_not_ask_whether_it_is_there(monkeypatch):
    heard = asyncio.Event()
    eof_received = LimitedProtocol.eof_received
    monkeypatch.setattr(LimitedProtocol, "eof_received", lambda self: (heard.set(), eof_received(self))[1])
    app = App()
    async with serving(app) as listener, connected(listener) as (reader, writer):
        app.go.clear()
        writer.write(GET + GET)
        writer.write_eof()
        await heard.wait()
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
        async with asyncio.timeout(5):
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


@pytest.mark.parametrize("method", [b"GET / ", b"HEAD / ", b"POST / "])
async def test_who_asks_for_the_end_of_the_connection_gets_it_with_or_without_a_body(method):
    app = App()
    last = GET.replace(b"GET / ", method).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with serving(app) as listener, connected(listener) as (reader, writer):
        writer.write(last + GET)
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
