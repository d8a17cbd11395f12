"""Connections with TLS, on both event loops: asyncio's, and uvloop's that a gateway runs on."""

import asyncio
import contextlib
import inspect
import ssl
from pathlib import Path

import pytest
import uvloop

from gateway.config.settings import ServerSettings
from gateway.config.tls import clients_context
from gateway.server.last_call import LAST_WORD, last_call
from gateway.server.server import Listener, bind
from tests.unit.server.listening import GET, answer
from tests.until import PATIENCE, until

FILES = Path(__file__).parents[1] / "config" / "certificates"


def on_both_loops(test):
    """The test on asyncio's loop, and on uvloop's."""

    def runs(loop, **fixtures):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**fixtures))

    named = [
        inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *inspect.signature(test).parameters.values(),
    ]
    runs.__name__, runs.__signature__ = test.__name__, inspect.Signature(named)
    loops = [asyncio.SelectorEventLoop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop", loops, ids=["asyncio", "uvloop"])(runs)


def context(name="localhost"):
    return clients_context(ServerSettings(tls_cert=FILES / f"{name}.pem", tls_key=FILES / f"{name}.key"))


def trusting(file="ca.pem"):
    return ssl.create_default_context(cafile=FILES / file)


async def app(scope, receive, send):
    if scope["path"] == "/slow":
        await receive()
        gone = (await receive())["type"]
        scope["state"]["gone"].append(gone)
        return
    said = f"{scope['scheme']} {scope['client'][0]}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


@contextlib.asynccontextmanager
async def secure(application=app, *, most=None, **settings):
    refused = []
    listener = Listener(
        application,
        bind("127.0.0.1", 0),
        ServerSettings(**settings),
        most=most,
        tls=context(),
        on_refused=lambda: refused.append(1),
    )
    listener.start()
    listener.refused = refused
    await until(lambda: listener._server.started)
    try:
        yield listener
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def client(listener, trusted=None, **options):
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", listener.port, ssl=trusted or trusting(), server_hostname="localhost", **options
    )
    try:
        async with asyncio.timeout(PATIENCE):
            yield reader, writer
    finally:
        writer.transport.abort()


def sockets():
    """How many this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the look itself
            found += str(link.readlink()).startswith("socket:")
    return found


@on_both_loops
async def test_a_client_is_answered_and_known_by_its_address():
    async with secure() as listener, client(listener) as (reader, writer):
        for _ in range(2):
            writer.write(GET)
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"https 127.0.0.1")


@on_both_loops
async def test_one_that_offers_more_than_http_1_1_gets_that():
    trusted = trusting()
    trusted.set_alpn_protocols(["h2", "http/1.1"])
    async with secure() as listener, client(listener, trusted) as (_, writer):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@on_both_loops
async def test_another_certificate_is_for_who_comes_and_takes_nobody_s_connection():
    async with secure() as listener, client(listener) as (reader, writer):
        writer.write(GET)
        await answer(reader)
        listener.govern(ServerSettings(), context("other"))
        with pytest.raises(ssl.SSLCertVerificationError):
            async with client(listener):
                pass
        async with client(listener, trusting("other.pem")) as (other, others):
            others.write(GET)
            assert (await answer(other))[0] == b"HTTP/1.1 200 OK"
        writer.write(GET)
        assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"


@on_both_loops
async def test_tls_can_begin_and_end_while_it_serves():
    async with secure() as listener:
        listener.govern(ServerSettings(), None)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET)
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"http 127.0.0.1")
        listener.govern(ServerSettings(), context())
        async with client(listener) as (other, others):
            others.write(GET)
            assert (await answer(other))[1] == b"https 127.0.0.1"
        writer.write(GET)
        assert (await answer(reader))[1] == b"http 127.0.0.1"
        writer.close()


@on_both_loops
async def test_a_handshake_that_does_not_end_is_broken_off(monkeypatch):
    monkeypatch.setattr("gateway.server.accepting.HANDSHAKE", 0.2)
    before = sockets()
    async with secure() as listener:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(sent)
            await until(lambda: listener.beginning == 1)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            await until(lambda: listener.beginning == 0)
            writer.close()
    await until(lambda: sockets() <= before)


@on_both_loops
async def test_handshakes_take_places_and_the_longest_gives_way(monkeypatch):
    monkeypatch.setattr("gateway.server.accepting._SPARE", 1)
    async with secure(most=3) as listener:
        held = []
        for number in range(8):
            held.append(await asyncio.open_connection("127.0.0.1", listener.port))
            await until(lambda number=number: listener.beginning == min(number + 1, 4))
        for reader, _ in held[:4]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert len(listener.refused) == 4
        async with client(listener) as (reader, writer):
            writer.write(GET)
            assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"
            assert listener.connections == 1
        for _, writer in held:
            writer.close()


@on_both_loops
async def test_who_comes_when_all_places_are_taken_is_told_so():
    async with secure(most=1) as listener, client(listener) as (_, held):
        held.write(b"G")
        async with client(listener) as (reader, writer):
            writer.write(GET)
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"gateway_full"' in said


@on_both_loops
async def test_plain_http_is_no_handshake_and_the_log_says_so(capsys):
    async with secure() as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert "the client speaks plain HTTP" in capsys.readouterr().out


@on_both_loops
async def test_a_client_that_does_not_trust_the_certificate_leaves_nothing_open(capsys):
    before = sockets()
    async with secure() as listener:
        for _ in range(5):
            with pytest.raises(ssl.SSLCertVerificationError):
                async with client(listener, ssl.create_default_context()):
                    pass
        await until(lambda: not (listener.beginning or listener.connections))
    await until(lambda: sockets() <= before)
    assert "a TLS handshake failed" in capsys.readouterr().out


@on_both_loops
async def test_a_slow_reader_is_served_whole_and_holds_no_more_than_without_tls():
    pieces, piece, sent = 400, b"." * 2**16, []

    async def long(scope, receive, send):
        length = b"%d" % (pieces * len(piece))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for number in range(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": number < pieces - 1})
            sent.append(number)

    async def stalled():
        before = len(sent)
        await asyncio.sleep(0.05)
        return 0 < len(sent) == before < pieces

    async with secure(long) as listener, client(listener, limit=2**12) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await until(stalled)
        (connection,) = listener._server.server_state.connections
        assert connection.transport.get_write_buffer_size() < 3 * len(piece)
        got = 0
        while part := await reader.read(2**16):
            got += len(part)
        assert got > pieces * len(piece)


@on_both_loops
async def test_a_client_that_ends_its_side_has_left():
    gone = []

    async def waits(scope, receive, send):
        scope["state"]["gone"] = gone
        await app(scope, receive, send)

    async with secure(waits) as listener, client(listener) as (_, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: listener.connections == 1)
        writer.close()  # says so, and then ends the connection
        await until(lambda: gone == ["http.disconnect"])
        await until(lambda: listener.connections == 0)


@on_both_loops
async def test_a_refused_head_is_answered_to_the_end():
    async with secure(max_header_bytes=500) as listener, client(listener) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 431")
        writer.write(b"z" * 1000)
        assert await reader.read() == b""


@on_both_loops
async def test_an_idle_connection_is_told_of_the_end():
    async with secure() as listener, client(listener) as (reader, writer):
        writer.write(GET)
        await answer(reader)
        stopping = asyncio.create_task(listener.stop())
        assert await reader.readexactly(len(LAST_WORD)) == LAST_WORD
        assert await reader.read() == b""
        await stopping


@on_both_loops
async def test_who_waits_to_be_accepted_at_the_very_end_is_answered():
    port = bind("127.0.0.1", 0)
    port.listen()

    coming = asyncio.create_task(
        asyncio.open_connection(*port.getsockname(), ssl=trusting(), server_hostname="localhost")
    )
    await asyncio.sleep(0.01)  # its connection waits, whether or not its handshake has begun
    closing = asyncio.create_task(last_call([port], context()))
    reader, writer = await asyncio.wait_for(coming, PATIENCE)
    writer.write(GET)
    assert await reader.read() == LAST_WORD
    writer.close()
    await closing
