import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from gateway.runtime.descriptors import OutOfDescriptorsError
from gateway.tokens.engine_count import UnansweredError, UnreachedError
from gateway.upstream.engine_questions import EngineQuestions
from gateway.upstream.http_upstream import HttpUpstream
from tests.ports import free_port
from tests.unit.upstream.endpoint import CHUNKED, Server, fetch, upstream
from tests.until import until


def nobody(_reason: str) -> None:
    """Whom nothing is told."""


@pytest.fixture
def full() -> Iterator[str]:
    """A URL where nobody takes connections: the backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as waiting:
        address = listening.getsockname()
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"


async def asked(
    client: HttpUpstream,
    url: str,
    failed: Callable[[str], None] = nobody,
    *,
    silence: float = 5.0,
    longest: float = 20.0,
    most: int = 1000,
) -> tuple[int, bytes]:
    ask = EngineQuestions(client, url, "key", failed)
    return await ask("/tokenize", b'{"prompt": "x"}', silence=silence, longest=longest, most=most)


async def test_a_question_is_json_with_the_endpoints_key_and_its_answer_comes_as_it_is(server: Server) -> None:
    async with upstream() as client:
        assert await asked(client, f"{server.url}/base") == (200, b"ok")
    (head,) = server.heads
    assert head.startswith(b"POST /base/tokenize HTTP/1.1\r\n")
    for line in (b"content-type: application/json", b"accept-encoding: identity", b"authorization: Bearer key"):
        assert b"\r\n" + line + b"\r\n" in head


async def test_a_question_that_is_lost_with_an_idle_connection_is_asked_again(server: Server) -> None:
    server.scripts = [server.answer_and_leave_at_the_next, server.answer]
    async with upstream() as client:
        assert await fetch(client, server.url) == b"ok"
        assert await asked(client, server.url, failed=pytest.fail) == (200, b"ok")


async def test_an_endpoint_without_a_key_gets_none(server: Server) -> None:
    async with upstream() as client:
        ask = EngineQuestions(client, server.url, None, nobody)
        assert await ask("/tokenize", b"{}", silence=5, longest=5, most=10) == (200, b"ok")
    assert b"authorization" not in server.heads[0]


async def test_questions_and_requests_share_their_connections(server: Server) -> None:
    async with upstream() as client:
        for _ in range(3):
            await asked(client, server.url)
            await fetch(client, server.url)
    assert server.connections == 1


async def test_of_a_question_that_fails_in_a_task_nothing_is_kept(server: Server, memory: Callable[[], int]) -> None:
    async def lose(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await server.head(reader)

    server.scripts = [lose]
    async with upstream() as client:
        ask = EngineQuestions(client, server.url, None, nobody)
        with contextlib.suppress(UnansweredError):
            await asyncio.create_task(ask("/tokenize", bytes(4 * 2**20), silence=5, longest=5, most=10))
            raise AssertionError("it was answered")
        await until(lambda: memory() < 2**20)


async def test_of_a_long_answer_only_the_beginning_is_read(server: Server) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(CHUNKED)
        while True:
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            await writer.drain()

    server.scripts = [endless]
    async with upstream() as client:
        status, body = await asked(client, server.url, most=10_000)
    assert status == 200
    assert 10_000 < len(body) < 10_000 + 2**18


@pytest.mark.parametrize(("silence", "longest"), [(0.1, 60.0), (60.0, 0.2)])
async def test_who_is_silent_or_takes_too_long_is_not_waited_for(
    server: Server, silence: float, longest: float
) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(CHUNKED)
        for _ in range(1000):
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.5 if silence < 1 else 0.01)

    server.scripts = [drip]
    began, failed = time.monotonic(), list[str]()
    async with upstream() as client:
        with pytest.raises(UnansweredError, match="did not come to an end in time") as caught:
            await asked(client, server.url, failed.append, silence=silence, longest=longest, most=10**6)
    assert not isinstance(caught.value, UnreachedError)
    assert time.monotonic() - began < 5
    assert failed == [], "it may be at work"


async def test_no_connection_and_a_lost_one_are_told_by_what_happened(server: Server) -> None:
    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)

    server.scripts, failed = [lose], list[str]()
    async with upstream() as client:
        with pytest.raises(UnansweredError, match="the connection was closed before the answer ended") as lost:
            await asked(client, server.url, failed.append)
        with pytest.raises(UnreachedError, match="connection refused"):
            await asked(client, f"http://127.0.0.1:{free_port()}", failed.append)
    assert not isinstance(lost.value, UnreachedError)
    assert len(failed) == 2


async def test_a_host_that_takes_no_connection_in_time_is_told_from_one_that_is_silent(full: str) -> None:
    async with upstream() as client:
        with pytest.raises(UnreachedError, match="did not come to an end in time"):
            await asked(client, full, silence=0.1)


async def test_a_lack_of_descriptors_is_no_engines_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lack(*_: object, **__: object) -> None:
        raise OutOfDescriptorsError

    async with upstream() as client:
        monkeypatch.setattr(client, "send", lack)
        with pytest.raises(OutOfDescriptorsError):
            await asked(client, "http://127.0.0.1:1")
