import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from gateway.config.settings import UpstreamSettings
from gateway.relay.connection import _ESTABLISHED, Connection
from gateway.relay.http_upstream import HttpUpstream
from gateway.relay.upstream import ConnectFailedError, ConnectionLostError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CERTIFICATES = Path(__file__).parents[1] / "endpoints" / "certificates"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: b\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Raw HTTP by script: each connection is handed to the next script, the last one serves all further ones."""

    def __init__(self) -> None:
        self.scripts: list[Serve] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length: "):
                await reader.readexactly(int(line.removeprefix(b"content-length: ")))
        return head

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await self.head(reader)
            except asyncio.IncompleteReadError:
                return
            writer.write(WHOLE)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        try:
            await script(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.scripts = [server.answer]
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield server
    listening.close()


@pytest.fixture
async def tls_server() -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key")
    server = Server()
    server.scripts = [server.answer]
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=context)
    server.url = f"https://localhost:{listening.sockets[0].getsockname()[1]}"
    yield server
    listening.close()


@asynccontextmanager
async def upstream(keepalive: float = 60.0) -> AsyncIterator[HttpUpstream]:
    client = HttpUpstream(lambda: UpstreamSettings(keepalive=keepalive))
    yield client
    await client.close()
    await asyncio.sleep(0)


async def fetch(client: HttpUpstream, url: str, body: bytes = b"{}") -> bytes:
    answer = await client.send(url, "POST", "/v1/x?y=1", [(b"x-request-id", b"r1")], body)
    pieces = []
    while piece := await answer.read_some():
        pieces.append(piece)
    answer.close()
    return b"".join(pieces)


async def test_sends_what_it_is_given_and_returns_what_it_gets(server: Server) -> None:
    async with upstream() as client:
        answer = await client.send(f"{server.url}/base", "POST", "/v1/x?y=1", [(b"X-Kept", b"as it is")], b"12345")
        assert (answer.status, list(answer.headers)) == (200, [(b"content-length", b"2"), (b"x-a", b"b")])
        assert await answer.read_some() == b"ok"
        assert await answer.read_some() == b""
        answer.close()
    (head,) = server.heads
    assert head.startswith(b"POST /base/v1/x?y=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nX-Kept: as it is\r\n" in head
    assert b"\r\ncontent-length: 5\r\n" in head


async def test_a_complete_answer_leaves_its_connection_for_the_next_request(server: Server) -> None:
    async with upstream() as client:
        for _ in range(5):
            assert await fetch(client, server.url) == b"ok"
    assert server.connections == 1


async def test_an_answer_that_was_not_read_to_its_end_closes_its_connection(server: Server) -> None:
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(CHUNKED + b"3\r\nabc\r\n")
        await reader.read()
        gone.set()

    server.scripts = [endless]
    async with upstream() as client:
        answer = await client.send(server.url, "POST", "/", [], b"")
        assert await answer.read_some() == b"abc"
        answer.close()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_cancelling_while_the_head_is_awaited_closes_the_connection(server: Server) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        asked.set()
        await reader.read()
        gone.set()

    server.scripts = [silent]
    async with upstream() as client, asyncio.timeout(5):
        sending = asyncio.create_task(client.send(server.url, "POST", "/", [], b"{}"))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await gone.wait()


@pytest.mark.parametrize("told_of", ["by the kernel", "when it is too late"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_that_meets_the_end_of_an_idle_connection_goes_out_again(
    loop: Callable[[], asyncio.AbstractEventLoop], told_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint closes it as the request is sent, and never reads a byte of it."""
    if told_of == "when it is too late":  # as between two machines: the one's end and the other's request cross
        tcp_info = Connection._tcp_info
        monkeypatch.setattr(Connection, "_tcp_info", lambda self: (_ESTABLISHED, tcp_info(self)[1]))

    async def meets() -> None:
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        async def one_answer() -> socket.socket:
            accepted, _ = await loop.sock_accept(listening)
            assert b"POST /" in await loop.sock_recv(accepted, 1000)
            await loop.sock_sendall(accepted, WHOLE)
            return accepted

        async with upstream() as client, asyncio.timeout(5):
            answering = asyncio.create_task(one_answer())
            assert await fetch(client, url) == b"ok"
            idle = await answering
            answering = asyncio.create_task(one_answer())
            await asyncio.sleep(0)
            idle.close()
            assert await fetch(client, url) == b"ok"
            (await answering).close()
        listening.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(meets())


async def test_a_request_that_a_pooled_connection_took_is_not_sent_again(server: Server) -> None:
    """The engine may have died of it."""

    async def one_answer_then_close_on_the_next(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(WHOLE)
        await server.head(reader)

    server.scripts = [one_answer_then_close_on_the_next, server.answer]
    async with upstream() as client:
        assert await fetch(client, server.url) == b"ok"
        with pytest.raises(ConnectionLostError):
            await fetch(client, server.url)
    assert (server.connections, len(server.heads)) == (1, 2)


@pytest.mark.parametrize(
    "surplus", [WHOLE.replace(b"ok", b"no"), b"x", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"]
)
@pytest.mark.parametrize("framed", [WHOLE, CHUNKED + b"2\r\nok\r\n0\r\n\r\n"])
async def test_nothing_behind_an_answer_belongs_to_it_nor_to_the_next(
    server: Server, framed: bytes, surplus: bytes
) -> None:
    async def babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(framed + surplus)
        await reader.read()

    server.scripts = [babbles, server.answer]
    async with upstream() as client, asyncio.timeout(5):
        assert [await fetch(client, server.url), await fetch(client, server.url)] == [b"ok", b"ok"]
    assert server.connections == 2


async def test_a_trailer_is_no_header(server: Server) -> None:
    async def with_a_trailer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(CHUNKED + b"2\r\nok\r\n0\r\nset-cookie: late\r\n\r\n")
        await reader.read()

    server.scripts = [with_a_trailer]
    async with upstream() as client:
        answer = await client.send(server.url, "POST", "/", [], b"")
        assert [await answer.read_some(), await answer.read_some()] == [b"ok", b""]
        assert list(answer.headers) == [(b"transfer-encoding", b"chunked")]
        answer.close()


@pytest.mark.parametrize(
    ("begun", "endless"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"x-many: x\r\n"),
        (b"HTTP/1.1 200 OK\r\nx-large: ", b"x" * 1000),
        (CHUNKED + b"2\r\nok\r\n0\r\n", b"x-trailer: x\r\n"),
        (CHUNKED + b"2;", b"x" * 1000),
    ],
)
async def test_what_is_no_body_has_a_bound(server: Server, begun: bytes, endless: bytes) -> None:
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await server.head(reader)
        writer.write(begun)
        while True:
            writer.write(endless * (10_000 // len(endless)))
            await writer.drain()
            sent += 10_000

    server.scripts = [floods]
    async with upstream() as client, asyncio.timeout(5):
        with pytest.raises(ConnectionLostError, match="over 64 KB of headers"):
            await fetch(client, server.url)
    assert sent < 30_000_000


async def test_a_request_that_dies_on_a_fresh_connection_is_not_sent_again(server: Server) -> None:
    async def dies(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await server.head(reader)

    server.scripts = [dies]
    async with upstream() as client:
        with pytest.raises(ConnectionLostError):
            await fetch(client, server.url)
    assert server.connections == 1


async def test_a_request_whose_answer_has_begun_is_not_sent_again(server: Server) -> None:
    async def tears_the_second_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(WHOLE)
        await server.head(reader)
        writer.write(b"HTTP/1.1 200 O")

    server.scripts = [tears_the_second_head, server.answer]
    async with upstream() as client:
        await fetch(client, server.url)
        with pytest.raises(ConnectionLostError):
            await fetch(client, server.url)
    assert server.connections == 1


async def test_a_connection_that_was_idle_for_too_long_is_closed(server: Server) -> None:
    closed = asyncio.Event()

    async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(WHOLE)
        assert await reader.read() == b""
        closed.set()

    server.scripts = [watched, server.answer]
    async with upstream(keepalive=0.05) as client, asyncio.timeout(5):
        await fetch(client, server.url)
        await closed.wait()
        assert await fetch(client, server.url) == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("torn", [CHUNKED + b"5\r\nab", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", CHUNKED])
async def test_a_torn_body_is_told(server: Server, torn: bytes) -> None:
    async def tears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(torn)

    server.scripts = [tears]
    async with upstream() as client:
        with pytest.raises(ConnectionLostError):
            await fetch(client, server.url)


async def test_a_body_without_a_length_ends_with_its_connection(server: Server) -> None:
    async def unframed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the end")

    server.scripts = [unframed, server.answer]
    async with upstream() as client:
        assert await fetch(client, server.url) == b"to the end"
        assert await fetch(client, server.url) == b"ok"


async def test_an_interim_answer_is_skipped(server: Server) -> None:
    async def interim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + WHOLE)
        await reader.read()

    server.scripts = [interim]
    async with upstream() as client:
        answer = await client.send(server.url, "POST", "/", [], b"")
        assert answer.status == 200
        assert (b"link", b"x") not in answer.headers
        assert await answer.read_some() == b"ok"
        answer.close()


async def test_many_requests_leave_one_timer(server: Server) -> None:
    async with upstream() as client:
        for _ in range(50):
            await fetch(client, server.url)
        assert len(client._timers) == 1


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_that_can_have_no_body_has_no_length_either(server: Server, status: bytes) -> None:
    async def promises(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 5\r\nx-a: b\r\n\r\n" % status)
        await reader.read()

    server.scripts = [promises]
    async with upstream() as client:
        answer = await client.send(server.url, "GET", "/", [], b"")
        assert answer.headers == [(b"x-a", b"b")]
        assert await answer.read_some() == b""
        answer.close()


@pytest.mark.parametrize(
    "begins", [b"SSH-2.0-OpenSSH_9.2\r\n", *(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % n for n in (600, 999))]
)
async def test_what_is_not_http_is_told(server: Server, begins: bytes) -> None:
    async def babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(begins)
        await reader.read()

    server.scripts = [babbles]
    async with upstream() as client:
        with pytest.raises(ConnectionLostError, match="not HTTP"):
            await fetch(client, server.url)


async def test_nobody_listening_is_told_apart_from_a_lost_connection() -> None:
    async with upstream() as client:
        with pytest.raises(ConnectFailedError, match="refused"):
            await fetch(client, "http://127.0.0.1:1")


class TestTls:
    async def test_a_trusted_certificate_is_accepted(self, tls_server: Server) -> None:
        trusting = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
        client = HttpUpstream(UpstreamSettings)
        client.trust(tls_server.url, trusting)
        assert await fetch(client, tls_server.url) == b"ok"
        await client.close()
        await asyncio.sleep(0)

    async def test_an_unknown_certificate_is_told_as_such(self, tls_server: Server) -> None:
        async with upstream() as client:
            with pytest.raises(ConnectFailedError, match="certificate"):
                await fetch(client, tls_server.url)


class TestDeliver:
    async def test_hands_over_each_piece_when_it_arrives(self, server: Server) -> None:
        more = asyncio.Event()

        async def two_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.head(reader)
            writer.write(CHUNKED + b"1\r\na\r\n")
            await more.wait()
            writer.write(b"1\r\nb\r\n0\r\n\r\n")
            await reader.read()

        server.scripts = [two_pieces]
        taken: list[bytes] = []

        def take(piece: bytes) -> bool:
            taken.append(piece)
            more.set()
            return True

        async with upstream() as client, asyncio.timeout(5):
            answer = await client.send(server.url, "POST", "/", [], b"")
            await answer.deliver(take, _never)
            answer.close()
            assert taken == [b"a", b"b"]

    async def test_reads_no_more_while_the_sink_is_behind(self, server: Server) -> None:
        size = 2**16
        written = 0
        stuck = asyncio.Event()

        async def firehose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            await server.head(reader)
            writer.write(CHUNKED)
            for _ in range(1000):
                writer.write(b"%x\r\n%b\r\n" % (size, b"x" * size))
                try:
                    async with asyncio.timeout(0.3):
                        await writer.drain()
                except TimeoutError:
                    stuck.set()
                    await writer.drain()
                written += size
            writer.write(b"0\r\n\r\n")
            await reader.read()

        server.scripts = [firehose]
        taken = 0

        def take(piece: bytes) -> bool:
            nonlocal taken
            taken += len(piece)
            return stuck.is_set()

        async def drained() -> None:
            await stuck.wait()

        async with upstream() as client, asyncio.timeout(30):
            answer = await client.send(server.url, "POST", "/", [], b"")
            delivering = asyncio.create_task(answer.deliver(take, drained))
            await stuck.wait()
            assert taken < 2**20, "it went on reading for a sink that was behind"
            await delivering
            answer.close()
        assert taken == 1000 * size

    async def test_what_the_sink_raises_is_raised_and_the_connection_is_not_used_again(self, server: Server) -> None:
        async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.head(reader)
            writer.write(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(0)
            writer.write(b"1\r\nb\r\n1\r\nc\r\n0\r\n\r\n")
            await reader.read()

        server.scripts = [streams, server.answer]

        def take(piece: bytes) -> bool:
            raise LookupError(piece)

        async with upstream() as client, asyncio.timeout(5):
            answer = await client.send(server.url, "POST", "/", [], b"")
            with pytest.raises(LookupError):
                await answer.deliver(take, _never)
            answer.close()
            assert await fetch(client, server.url) == b"ok"
        assert server.connections == 2

    async def test_nothing_that_came_after_what_the_sink_refused_is_handed_over(self, server: Server) -> None:
        awaited, refused = asyncio.Event(), asyncio.Event()

        async def in_two_segments(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.head(reader)
            writer.write(CHUNKED)
            await awaited.wait()
            writer.write(b"1\r\na\r\n1\r\nb\r\n")
            await refused.wait()
            writer.write(b"1\r\nc\r\n0\r\n\r\n")
            await reader.read()

        server.scripts = [in_two_segments]
        taken: list[bytes] = []

        def take(piece: bytes) -> bool:
            taken.append(piece)
            refused.set()
            raise LookupError(piece)

        async with upstream() as client, asyncio.timeout(5):
            answer = await client.send(server.url, "POST", "/", [], b"")
            delivering = asyncio.create_task(answer.deliver(take, _never))
            await asyncio.sleep(0)  # the sink is there when the rest comes
            awaited.set()
            with pytest.raises(LookupError):
                await delivering
            answer.close()
        assert taken == [b"ab"]

    async def test_a_torn_body_is_told(self, server: Server) -> None:
        async def tears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.head(reader)
            writer.write(CHUNKED + b"1\r\na\r\n")

        server.scripts = [tears]
        async with upstream() as client, asyncio.timeout(5):
            answer = await client.send(server.url, "POST", "/", [], b"")
            with pytest.raises(ConnectionLostError):
                await answer.deliver(lambda _: True, _never)
            answer.close()


async def _never() -> None:
    raise AssertionError("the sink was never behind")
