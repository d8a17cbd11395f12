import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.upstream.interface import ConnectFailedError, ConnectionLostError
from gateway.upstream.unix_connection import UnixConnection, connect
from tests.unit.upstream.endpoint import WHOLE, Server, fetch, upstream
from tests.until import PATIENCE

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@pytest.fixture
async def unix(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server()
    server.scripts = [server.answer]
    listening = await asyncio.start_unix_server(server.connected, tmp_path / "vllm.sock")
    server.url = f"unix:{tmp_path}/vllm.sock"
    yield server
    listening.close()


async def test_a_request_goes_over_the_socket_and_its_connection_serves_the_next(unix: Server) -> None:
    async with upstream() as client, asyncio.timeout(PATIENCE):
        for _ in range(3):
            assert await fetch(client, unix.url) == b"ok"
    assert unix.connections == 1
    assert unix.heads[0].startswith(b"POST /v1/x?y=1 HTTP/1.1\r\nhost: localhost\r\n")


@LOOPS
def test_a_request_never_meets_a_connection_whose_end_has_come(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """The kernel has no TCP_INFO of it; to ask for one broke the request and left its connection open."""

    async def meets() -> None:
        path, accepted = str(tmp_path / "vllm.sock"), list[socket.socket]()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            listening.setblocking(False)
            loop = asyncio.get_running_loop()

            async def answer() -> None:
                accepted.append((await loop.sock_accept(listening))[0])
                await loop.sock_recv(accepted[-1], 1000)
                await loop.sock_sendall(accepted[-1], WHOLE)

            async with upstream() as client, asyncio.timeout(PATIENCE):
                for _ in range(2):
                    answering = asyncio.create_task(answer())
                    assert await fetch(client, f"unix:{path}") == b"ok"
                    await answering
                    accepted[-1].close()  # and nobody here has had a turn to notice
        assert len(accepted) == 2

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(meets())


@LOOPS
def test_what_was_written_is_not_sent_again(loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    """The engine may have died of it."""

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def meets() -> None:
        listening = await asyncio.start_unix_server(dies, tmp_path / "vllm.sock")
        async with asyncio.timeout(PATIENCE):
            connection = await connect(str(tmp_path / "vllm.sock"))
            with pytest.raises(ConnectionLostError):
                await connection.request(b"GET / HTTP/1.1\r\n\r\n", b"")
            assert not connection.untouched
        listening.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(meets())


async def test_nobody_there_is_a_refused_connection(tmp_path: Path) -> None:
    async with upstream() as client:
        with pytest.raises(ConnectFailedError, match="No such file"):
            await fetch(client, f"unix:{tmp_path}/none.sock")


async def test_a_full_queue_of_connections_is_waited_for(tmp_path: Path) -> None:
    """Of TCP the kernel tries again by itself; a unix socket says EAGAIN."""
    path = str(tmp_path / "vllm.sock")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as held:
        listening.bind(path)
        listening.listen(0)
        waiting = held.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(path)
        connecting = asyncio.create_task(connect(path))
        await asyncio.sleep(0.05)
        assert not connecting.done()
        held.enter_context(listening.accept()[0])
        connection = await asyncio.wait_for(connecting, PATIENCE)
        assert isinstance(connection, UnixConnection)
        assert connection.open
        connection.abort()
