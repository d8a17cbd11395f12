import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from engine.diagnosis.model import Examined
from engine.diagnosis.service import examine, proxied
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.ports import free_port

SLOW = FakeSettings(step_seconds=0.008)
"""64 tokens take half a second: long enough to tell whether they come one by one."""


async def asked(url: str, **options: str) -> Examined:
    return await asyncio.to_thread(examine, url, **options)


def signs(examined: Examined) -> list[str]:
    return [found.sign for found in examined.findings]


@contextlib.asynccontextmanager
async def proxy(upstream: str, *, lump: int) -> AsyncIterator[str]:
    """A reverse proxy that hands an answer over in pieces of at least `lump` bytes."""
    host, port = upstream.removeprefix("http://").split(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1])) if length else b""
        back, there = await asyncio.open_connection(host, int(port))
        there.write(re.sub(rb"(?i)connection: [^\r]*", b"connection: close", head) + body)
        held = b""
        while part := await back.read(65536):
            held += part
            if len(held) >= lump:
                writer.write(held)
                held = b""
        writer.write(held)
        for stream in (writer, there):
            stream.close()
            with contextlib.suppress(ConnectionError):
                await stream.wait_closed()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_with_nothing_wrong_is_seen_to_stream() -> None:
    async with FakeVllm(SLOW) as fake:
        examined = await asked(f"{fake.url}/v1")
    assert signs(examined) == []
    assert "serves fake" in examined.looked_at
    assert "came as they were made" in examined.looked_at[-1] or "came as it" in examined.looked_at[-1]


@pytest.mark.parametrize(("lump", "how"), [(2**20, "in one lump"), (4000, "in chunks")])
async def test_a_proxy_that_buffers_is_measured(lump: int, how: str) -> None:
    async with FakeVllm(SLOW) as fake, proxy(fake.url, lump=lump) as url:
        examined = await asked(url)
    assert signs(examined) == ["stream buffered"]
    assert how in examined.findings[0].cause
    assert "proxy_buffering off" in examined.findings[0].remedy


async def test_a_proxy_that_passes_everything_on_is_none() -> None:
    async with FakeVllm(SLOW) as fake, proxy(fake.url, lump=1) as url:
        assert signs(await asked(url)) == []


async def test_an_answer_too_fast_to_tell_is_asked_for_again_and_longer() -> None:
    async with FakeVllm(FakeSettings(step_seconds=0.0001, output_tokens=16)) as fake:
        examined = await asked(fake.url)
    assert signs(examined) == []
    assert [seen.path for seen in fake.seen].count("/v1/completions") == 2
    assert "a stream of 51" in examined.looked_at[-1]


@pytest.mark.parametrize("kind", [FaultKind.STATUS, FaultKind.BUSY_IN_STREAM])
async def test_a_refused_completion_is_shown(kind: FaultKind) -> None:
    async with FakeVllm(SLOW, faults=[Fault(kind, path="/v1/completions")]) as fake:
        examined = await asked(fake.url)
    assert signs(examined) == ["completion refused"]
    assert "busy" in examined.findings[0].evidence


async def test_a_stream_that_breaks_off_is_shown() -> None:
    async with FakeVllm(SLOW, faults=[Fault(FaultKind.RESET_MID_STREAM, after=5, path="/v1/completions")]) as fake:
        examined = await asked(fake.url)
    assert signs(examined) == ["stream broke off"]


async def test_nobody_there() -> None:
    examined = await asked(f"http://127.0.0.1:{free_port()}")
    assert signs(examined) == ["no answer"]
    assert "--log FILE" in examined.findings[0].remedy
    assert signs(await asked("nonsense")) == ["no answer"]


async def answering(answers: dict[str, str]) -> asyncio.Server:
    """A server that answers paths with a status, and everything else with 404."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        status, _, body = answers.get(path, "404 Not Found").partition("\n")
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answers", "sign"),
    [
        ({"/health": "503 Service Unavailable"}, "model still loads"),
        ({"/health": "502 Bad Gateway"}, "model still loads"),
        ({"/health": "200 OK", "/v1/models": "401 Unauthorized"}, "no key"),
        ({"/health": "200 OK", "/v1/models": "200 OK\n{}"}, "no model served"),
        ({"/health": "200 OK", "/metrics": "200 OK\nvllm:x{ 1"}, "no model served"),
    ],
)
async def test_servers_that_are_not_ready(answers: dict[str, str], sign: str) -> None:
    async with await answering(answers) as server:
        examined = await asked(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert signs(examined) == [sign]


async def test_the_endpoints_of_a_kvgate_are_told() -> None:
    state = (
        '200 OK\n{"endpoints": [{"id": "a", "state": "starting", "reason": "it does not answer", "since_seconds": 7.2},'
        ' {"id": "b", "state": "up", "engine": {"preemptions": 3}}]}'
    )
    async with await answering({"/health": "200 OK", "/kvgate/state": state}) as server:
        examined = await asked(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert signs(examined) == ["endpoint not ready", "preemptions", "no model served"]
    assert examined.findings[0].evidence == "starting for 7 s"
    assert examined.findings[1].cause.startswith("endpoint b: 3 requests")


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("http://localhost:8000", {"HTTP_PROXY": "http://me:secret@proxy:3128"}, ["proxy between client and server"]),
        ("http://localhost:8000", {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost"}, []),
        ("http://localhost:8000", {}, []),
        ("http://gpu-1:8000", {"HTTP_PROXY": "http://proxy:3128"}, []),  # it may well reach that one
        ("http://[::", {"HTTP_PROXY": "http://proxy:3128"}, []),
    ],
)
def test_a_proxy_cannot_reach_what_is_this_machine(url: str, environ: dict[str, str], expected: list[str]) -> None:
    found = list(proxied(url, environ))
    assert [one.sign for one in found] == expected
    assert "secret" not in str(found)
