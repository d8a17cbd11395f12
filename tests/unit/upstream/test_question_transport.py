import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.config.settings import UpstreamSettings
from gateway.upstream.question_transport import QuestionTransport
from tests.unit.upstream.endpoint import CHUNKED, WHOLE, Serve, Server

CERTIFICATES = Path(__file__).parents[1] / "config" / "certificates"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = QuestionTransport(UpstreamSettings, None)
    async with httpx.AsyncClient(transport=transport, trust_env=False, headers={"authorization": "Bearer key"}) as made:
        yield made


def says(server: Server, *pieces: bytes, times: int = 1) -> Serve:
    """Answers so, and as often as it is let."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(pieces[0])
        for _ in range(times):
            writer.writelines(pieces[1:])
            await writer.drain()

    return script


async def test_a_question_and_its_answer_are_httpxs(server: Server, client: httpx.AsyncClient) -> None:
    server.scripts = [server.answer]
    for _ in range(3):
        answer = await client.post(f"{server.url}/base/tokenize?a=b", content=b"12345")
        assert (answer.status_code, answer.headers["x-a"], answer.content) == (200, "b", b"ok")
    head = server.heads[0].lower()
    assert head.startswith(b"post /base/tokenize?a=b http/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: bearer key\r\n" in head
    assert head.count(b"content-length: 5") == head.count(b"host:") == 1
    assert server.connections == 1


async def test_a_question_whose_connection_ends_with_it_takes_no_other(
    server: Server, client: httpx.AsyncClient
) -> None:
    server.scripts = [server.answer] * 2
    await client.get(server.url)
    await client.get(server.url, headers={"connection": "close"})
    assert server.connections == 2, "whether a new one is taken is part of the answer"


async def test_it_says_when_there_is_a_connection(server: Server, client: httpx.AsyncClient) -> None:
    heard: list[int] = []
    server.scripts = [server.answer]
    for _ in range(2):
        await client.get(server.url, extensions={"connected": lambda: heard.append(server.connections)})
    assert len(heard) == 2


async def test_a_certificate_that_is_not_trusted_is_named(client: httpx.AsyncClient) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key")
    server = Server()
    async with await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=context) as listening:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"https://localhost:{listening.sockets[0].getsockname()[1]}")


async def test_a_name_that_is_not_known_is_named(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ConnectError, match=r"Errno -\d"):
        await client.get("http://nowhere.invalid:1")


@pytest.mark.parametrize("said", [b"", WHOLE], ids=["no answer", "half an answer"])
async def test_silence_is_as_long_as_its_question_allows(
    server: Server, client: httpx.AsyncClient, said: bytes
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(said[:-1])
        await reader.read()

    server.scripts = [silent]
    with pytest.raises(httpx.ReadTimeout):
        await client.get(server.url, timeout=httpx.Timeout(5, read=0.02))


@pytest.mark.parametrize(
    "pieces",
    [(CHUNKED, b"1\r\na\r\n" * 10_000), (b"", b"HTTP/1.1 100 C\r\n\r\n" * 5_000), (WHOLE[:20], b"a:\r\n" * 10_000)],
    ids=["a chunk for each byte", "interim answers", "headers"],
)
async def test_what_is_no_body_is_not_read_for_ever(
    server: Server, client: httpx.AsyncClient, pieces: tuple[bytes, ...]
) -> None:
    server.scripts = [says(server, *pieces, times=100)]
    with pytest.raises(httpx.RemoteProtocolError, match="64 KB"):
        await client.get(server.url)


async def test_what_is_torn_is_told(server: Server, client: httpx.AsyncClient) -> None:
    server.scripts = [says(server, WHOLE[:-1])]
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get(server.url)


async def test_what_httpx_would_act_on_is_left_out(server: Server, client: httpx.AsyncClient) -> None:
    head = b"HTTP/1.1 302 Found\r\ncontent-length: 2\r\nlocation: http://xn--a/\r\n"
    server.scripts = [says(server, head + b"set-cookie: a=b\r\nSet-Cookie2: c=d\r\n\r\nok", times=0)]
    answer = await client.get(server.url)
    assert (answer.status_code, answer.content) == (302, b"ok")
    assert not client.cookies
