import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.config.settings import UpstreamSettings
from gateway.runtime.descriptors import OutOfDescriptorsError
from gateway.upstream.connection import ESTABLISHED, Connection
from gateway.upstream.http_upstream import HttpUpstream
from gateway.upstream.interface import ConnectFailedError, ConnectionLostError
from tests.unit.upstream.endpoint import WHOLE, Server, fetch, upstream
from tests.until import until

CERTIFICATES = Path(__file__).parents[1] / "config" / "certificates"


@contextlib.asynccontextmanager
async def over_tls() -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key")
    server = Server()
    server.scripts = [server.answer]
    async with await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=context) as listening:
        server.url = f"https://localhost:{listening.sockets[0].getsockname()[1]}"
        yield server


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


@pytest.mark.parametrize("told_of", ["by the kernel", "when it is too late"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_that_meets_the_end_of_an_idle_connection_goes_out_again(
    loop: Callable[[], asyncio.AbstractEventLoop], told_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint closes it as the request is sent, and never reads a byte of it."""
    if told_of == "when it is too late":  # as between two machines: the one's end and the other's request cross
        tcp_info = Connection._tcp_info
        monkeypatch.setattr(Connection, "_tcp_info", lambda self: (ESTABLISHED, tcp_info(self)[1]))

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

        async with upstream() as client, asyncio.timeout(60):
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


async def test_a_request_that_a_pooled_connection_took_is_not_sent_again_unless_it_may_be(server: Server) -> None:
    """The engine may have died of it."""
    server.scripts = [server.answer_and_leave_at_the_next, server.answer_and_leave_at_the_next, server.answer]
    async with upstream() as client:
        assert await fetch(client, server.url) == b"ok"
        with pytest.raises(ConnectionLostError):
            await fetch(client, server.url)
        assert (server.connections, len(server.heads)) == (1, 2)
        assert await fetch(client, server.url) == b"ok"
        answer = await client.send(server.url, "POST", "/", [], b"", repeatable=True)
        assert await answer.read_some() == b"ok"
        answer.close()
    assert (server.connections, len(server.heads)) == (3, 5)


async def test_a_request_that_is_to_be_alone_takes_no_pooled_connection(server: Server) -> None:
    async with upstream() as client:
        assert await fetch(client, server.url) == b"ok"
        (await client.send(server.url, "POST", "/", [], b"", alone=True)).close()
    assert server.connections == 2


async def test_a_request_that_dies_on_a_fresh_connection_is_not_sent_again(server: Server) -> None:
    async def dies(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await server.head(reader)

    server.scripts = [dies]
    async with upstream() as client:
        with pytest.raises(ConnectionLostError):
            await fetch(client, server.url)
    assert server.connections == 1


async def test_no_request_goes_out_on_a_connection_whose_server_failed(server: Server) -> None:
    """uvicorn ends it after a 500, without saying so: the next request would be lost with it."""

    async def fails_and_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(WHOLE.replace(b"200 OK", b"500 Internal Server Error"))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await server.head(reader)

    server.scripts = [fails_and_ends, server.answer]
    async with upstream() as client:
        assert await fetch(client, server.url) == b"ok"
        assert await fetch(client, server.url) == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize(("kind", "connections"), [("llama.cpp", 2), ("uvicorn", 1)])
async def test_no_request_goes_out_on_a_connection_whose_server_ends_it_after_a_stream(
    server: Server, kind: str, connections: int
) -> None:
    """A llama-server says `Keep-Alive: timeout=5` and ends it a moment after the last chunk: the next would be lost."""

    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        head = f"HTTP/1.1 200 OK\r\nServer: {kind}\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5\r\n\r\n"
        writer.write(head.encode() + b"2\r\nok\r\n0\r\n\r\n")
        if kind == "uvicorn":
            await server.answer(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await server.head(reader)

    server.scripts = [streams, server.answer]
    async with upstream() as client:
        assert await fetch(client, server.url) == b"ok"
        assert await fetch(client, server.url) == b"ok"
    assert server.connections == connections


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
    async with upstream(keepalive=0.05) as client, asyncio.timeout(60):
        await fetch(client, server.url)
        await closed.wait()
        assert await fetch(client, server.url) == b"ok"
    assert server.connections == 2


async def test_many_requests_leave_one_timer(server: Server) -> None:
    async with upstream() as client:
        for _ in range(50):
            await fetch(client, server.url)
        assert len(client._timers) == 1


async def test_of_two_idle_connections_each_is_closed_when_its_own_time_is_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, passed = asyncio.get_running_loop(), 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + passed)
    async with upstream(keepalive=60) as client:
        first, second = [await client.send(server.url, "POST", "/", [], b"") for _ in range(2)]
        assert [await first.read_some(), await second.read_some()] == [b"ok", b"ok"]
        first.close()
        passed += 40
        second.close()
        idle = client._idle[server.url]
        left = [*idle][1]
        passed += 40
        await until(lambda: len(idle) < 2)
        assert list(idle) == [left]
        passed += 40
        await until(lambda: not idle)
        assert not client._timers, "nothing is left to look at"


async def test_an_endpoint_that_is_forgotten_keeps_no_idle_connection_but_its_answer(server: Server) -> None:
    go = asyncio.Event()

    async def answers_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        await go.wait()
        writer.write(WHOLE)
        await reader.read()

    gone = asyncio.Event()

    async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(WHOLE)
        await reader.read()
        gone.set()

    server.scripts = [watched, answers_slowly]
    async with upstream() as client, asyncio.timeout(60):
        idle = await client.send(server.url, "POST", "/", [], b"")
        assert await idle.read_some() == b"ok"
        under_way = asyncio.create_task(fetch(client, server.url))
        await until(lambda: len(server.heads) == 2)
        idle.close()
        client.forget(server.url)
        await gone.wait()
        go.set()
        assert await under_way == b"ok"


async def test_an_answer_may_be_closed_twice_and_then_delivers_nothing(server: Server) -> None:
    async with upstream() as client:
        answer = await client.send(server.url, "POST", "/", [], b"")
        assert await answer.read_some() == b"ok"
        answer.close()
        answer.close()
        assert len(client._idle[server.url]) == 1
        await answer.deliver(lambda _: False, lambda: pytest.fail("it has no connection any more"))


@pytest.mark.usefixtures("hurried")
async def test_who_does_not_take_a_connection_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", silence)
    client = HttpUpstream(lambda: UpstreamSettings(connect_timeout=7))
    with pytest.raises(ConnectFailedError, match="no connection within 7 s"):
        await client.send("http://10.0.0.1", "GET", "/", [], b"")


async def test_a_request_goes_out_once_its_connection_is_there(server: Server) -> None:
    heard: list[int] = []
    async with upstream() as client:
        for _ in range(2):  # on a new connection, and on the one that it left
            answer = await client.send(
                server.url, "POST", "/v1/x", [], b"{}", sending=lambda: heard.append(len(server.heads))
            )
            assert await answer.read_some() == b"ok"
            assert await answer.read_some() == b""
            answer.close()
    assert (server.connections, heard) == (1, [0, 1])


async def test_nothing_has_gone_out_while_the_endpoint_hangs_in_the_handshake(server: Server) -> None:
    began, heard = asyncio.Event(), list[str]()

    async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)
        began.set()
        await reader.read()

    server.scripts = [hang]
    async with upstream() as client:
        connecting = asyncio.create_task(
            client.send(
                server.url.replace("http:", "https:"),
                "POST",
                "/v1/x",
                [],
                b"{}",
                sending=lambda: heard.append("sending"),
                connected=lambda: heard.append("connected"),
            )
        )
        await began.wait()
        connecting.cancel()
        await asyncio.wait([connecting])
    assert connecting.cancelled()
    assert heard == ["connected"]


async def test_a_lack_of_descriptors_is_ours_and_not_the_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lacks(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", lacks)
    with pytest.raises(OutOfDescriptorsError):
        await HttpUpstream(UpstreamSettings).send("http://10.0.0.1", "GET", "/", [], b"")


async def test_nobody_listening_is_told_apart_from_a_lost_connection() -> None:
    async with upstream() as client:
        with pytest.raises(ConnectFailedError, match="refused"):
            await fetch(client, "http://127.0.0.1:1")


class TestTls:
    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    def test_a_trusted_certificate_is_accepted(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        async def ask() -> None:
            client = HttpUpstream(UpstreamSettings)
            async with over_tls() as server:
                client.trust(server.url, ssl.create_default_context(cafile=CERTIFICATES / "ca.pem"))
                for _ in range(3):
                    assert await fetch(client, server.url) == b"ok"
                assert server.connections == 1
                await client.close()
                await asyncio.sleep(0)

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(ask())

    async def test_of_two_contexts_the_last_one_counts(self) -> None:
        async with upstream() as client, over_tls() as server:
            client.trust(server.url, ssl.create_default_context(cafile=CERTIFICATES / "other.pem"))
            with pytest.raises(ConnectFailedError, match="certificate"):
                await fetch(client, server.url)
            client.trust(server.url, ssl.create_default_context(cafile=CERTIFICATES / "ca.pem"))
            assert await fetch(client, server.url) == b"ok"

    async def test_an_unknown_certificate_is_told_as_such(self) -> None:
        async with upstream() as client, over_tls() as server:
            with pytest.raises(ConnectFailedError, match="certificate"):
                await fetch(client, server.url)
