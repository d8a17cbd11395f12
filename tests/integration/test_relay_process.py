"""The gateway as a process: signals, and a thousand streams at once."""

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest

from tests.integration.kvgate import serving
from tests.integration.relaying import CHAT, body, fake_processes, http, raw
from tests.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def fronting(tmp_path):
    """Starts a gateway process in front of a fake process with these options."""
    stack = []

    def start(*options: str, arguments: tuple[str, ...] = ()):
        fakes = fake_processes(1, *options)
        [(url, _)] = fakes.__enter__()
        stack.append(fakes)
        log = tmp_path / "kvgate.log"
        gateway = serving(log, free_port(), "--endpoint", url, "--tokenizer", "/nonexistent", *arguments)
        kvgate = gateway.__enter__()
        stack.append(gateway)
        kvgate.wait_healthy(1)
        return kvgate

    yield start
    for context in reversed(stack):
        context.__exit__(None, None, None)


async def stream(session, url, **fields):
    """The texts of a stream, and whether it ended well."""
    texts, whole = [], b""
    async with session.post(f"{url}{CHAT}", json=body(stream=True, **fields)) as answer:
        assert answer.status == 200
        async for line in answer.content:
            whole += line
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices", ())
                texts.extend(choice["delta"].get("content", "") for choice in choices)
    return "".join(texts), whole


async def begun(session, url, tokens):
    """A stream that has begun."""
    task = asyncio.create_task(stream(session, url, tokens=tokens))
    deadline = time.monotonic() + 10
    async with httpx.AsyncClient() as client:
        while time.monotonic() < deadline:
            state = (await client.get(f"{url}/kvgate/state")).json()
            if state["endpoints"][0]["in_flight"]:
                return task
            await asyncio.sleep(0.01)
    raise AssertionError("nothing is in flight")


async def test_sigterm_lets_streams_finish_and_takes_nothing_new(fronting):
    kvgate = fronting("--step-seconds=0.01", "--output-tokens=2000")
    async with aiohttp.ClientSession() as session, httpx.AsyncClient(base_url=kvgate.url) as client:
        running = await begun(session, kvgate.url, 150)
        kvgate.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while (ready := await client.get("/readyz")).status_code == 200:
            assert time.monotonic() < deadline
        assert (ready.status_code, ready.json()["error"]["code"]) == (503, "draining")
        assert (await client.get("/livez")).status_code == 200
        refused = await client.post(CHAT, json=body())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        large = await client.post(CHAT, content=b"x" * (4 << 20))
        assert large.status_code == 503
        text, whole = await running
        assert text == "".join(f" {number}" for number in range(150))
        assert whole.endswith(b"data: [DONE]\n\n")
    assert await asyncio.to_thread(kvgate.process.wait, 10) == 0


def test_a_log_that_cannot_be_written_stops_nothing():
    """As where the disk is full, or what reads the log has ended."""
    with fake_processes(1) as [(url, _)]:
        nowhere = Path("/dev/full")
        with serving(nowhere, free_port(), "--endpoint", url, "--tokenizer", "/nonexistent") as kvgate:
            wait_until(kvgate.healthy)
            with httpx.Client(base_url=kvgate.url) as client:
                for _ in range(3):
                    assert client.post(CHAT, json=body()).status_code == 200
                endpoint = f"/kvgate/endpoints/{urlsplit(url).netloc}"
                assert client.post(f"{endpoint}/drain").json()["state"] == "draining"
                assert client.post(f"{endpoint}/undrain").status_code == 200
            wait_until(kvgate.healthy)
    assert kvgate.process.returncode == 0


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_sigterm_refuses_those_who_wait(fronting):
    kvgate = fronting("--step-seconds=0.02", "--num-blocks=9", "--block-size=32", "--max-model-len=256")
    async with httpx.AsyncClient(base_url=kvgate.url, timeout=30) as client:
        prompt = [{"role": "user", "content": "w " * 150}]
        first = asyncio.create_task(client.post(CHAT, json=body(messages=prompt, tokens=60)))
        second = asyncio.create_task(client.post(CHAT, json=body(messages=prompt, tokens=60)))
        deadline = time.monotonic() + 10
        while not (await client.get("/kvgate/state")).json()["queues"][0]["depth"]:
            assert time.monotonic() < deadline
        kvgate.process.send_signal(signal.SIGTERM)
        assert sorted([(await first).status_code, (await second).status_code]) == [200, 503]
    assert await asyncio.to_thread(kvgate.process.wait, 10) == 0


async def test_a_second_signal_stops_at_once(fronting):
    kvgate = fronting("--step-seconds=0.05", "--max-model-len=8000")
    async with aiohttp.ClientSession() as session:
        running = await begun(session, kvgate.url, 2000)
        kvgate.process.send_signal(signal.SIGINT)
        async with httpx.AsyncClient(base_url=kvgate.url) as client:
            while (await client.get("/readyz")).status_code == 200:
                pass
        assert kvgate.process.poll() is None
        kvgate.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(kvgate.process.wait, 2) == 130
        with pytest.raises(aiohttp.ClientError):
            await running


async def test_streams_that_outlast_the_bound_are_cut(fronting, monkeypatch):
    monkeypatch.setenv("KVGATE_SERVER__SHUTDOWN_TIMEOUT", "0.3")
    kvgate = fronting("--step-seconds=0.05", "--max-model-len=8000")
    async with aiohttp.ClientSession() as session:
        running = await begun(session, kvgate.url, 2000)
        kvgate.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(kvgate.process.wait, 8) == 0
        _, whole = await running
    assert whole.endswith(b'"code":"draining"}}\n\n'), "its client hears why"
    log = kvgate.log.read_text()
    assert ("gave up on requests" in log, "Traceback" in log) == (True, False)


def test_a_port_that_is_taken_is_said_with_who_has_it_and_the_way_out(fronting):
    kvgate = fronting()
    port = kvgate.url.rsplit(":", 1)[1]
    with serving(kvgate.log.with_name("second.log"), int(port), "--endpoint", "http://127.0.0.1:9") as second:
        assert second.process.wait(120) == 2
        (line,) = second.log.read_text().splitlines()
        what, way_out = json.loads(line)["event"].splitlines()
        assert f":{port}: " in what
        assert f"(process {kvgate.process.pid}) listens there" in what
        assert "--port" in way_out


def test_an_advertised_port_that_is_taken_is_said_at_the_start(tmp_path):
    key = tmp_path / "key"
    key.write_text("k" * 40)
    key.chmod(0o600)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        tier = (
            "--tier-redis",
            "redis://127.0.0.1:9",
            "--tier-advertise",
            f"127.0.0.1:{port}",
            "--tier-key-file",
            str(key),
        )
        with serving(tmp_path / "log", free_port(), "--endpoint", "http://127.0.0.1:9", *tier) as kvgate:
            assert kvgate.process.wait(120) == 2
        (line,) = kvgate.log.read_text().splitlines()
        what, way_out = json.loads(line)["event"].splitlines()
        assert what.startswith(f"tier.advertise: cannot listen on port {port}: Address already in use: ")
        assert f"(process {os.getpid()}) listens there" in what
        assert "--tier-advertise" in way_out


async def test_a_thousand_streams_at_once_lose_and_mix_nothing(fronting):
    streams, tokens = 1000, 20
    kvgate = fronting("--step-seconds=0.1", "--max-num-seqs=2000", "--num-blocks=4000", "--max-batched-tokens=100000")
    engine = kvgate.state()["endpoints"][0]["url"]
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
        httpx.AsyncClient(timeout=60) as client,
    ):
        await client.post(f"{engine}/pause")  # until all of them are there
        running = [asyncio.create_task(stream(session, kvgate.url, tokens=tokens)) for _ in range(streams)]
        deadline = time.monotonic() + 60
        while (await client.get(f"{kvgate.url}/kvgate/state")).json()["endpoints"][0]["in_flight"] < streams:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await client.post(f"{engine}/resume")
        answers = await asyncio.gather(*running)
    expected = "".join(f" {number}" for number in range(tokens))
    wrong = [text for text, whole in answers if text != expected or not whole.endswith(b"data: [DONE]\n\n")]
    assert wrong == []


def resident(process):
    """Bytes of memory that a process holds."""
    (line,) = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) << 10


async def test_a_client_that_does_not_read_stops_our_reading(fronting):
    """A fast stream with an event of 64 MiB meets a client that reads nothing for a while, then everything."""
    size = 64 << 20
    kvgate = fronting("--step-seconds=0")
    engine = kvgate.state()["endpoints"][0]["url"]
    async with aiohttp.ClientSession() as session, httpx.AsyncClient(timeout=30) as client:
        await stream(session, kvgate.url, tokens=20)
        # What it imports to try a tokenizer is not what we measure.
        async with asyncio.timeout(60):
            while "there is no folder" not in kvgate.state()["counting"][0]["reason"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        fault = {"kind": "gigantic", "after": 2, "size": size, "path": CHAT}
        await client.post(f"{engine}/fake/faults", json=[fault])
        before = resident(kvgate.process)
        port = int(kvgate.url.rsplit(":", 1)[1])
        reader, writer = await raw(port, http(CHAT, json.dumps(body(stream=True)).encode()))
        writer.transport.pause_reading()
        most, until = 0, time.monotonic() + 1.5
        while time.monotonic() < until:
            most = max(most, resident(kvgate.process) - before)
            await asyncio.sleep(0.02)
        assert most < 8 << 20, f"{most} bytes are held for a client that does not read"
        writer.transport.resume_reading()
        received, last = 0, b""
        while b"[DONE]" not in last:
            piece = await reader.read(1 << 18)
            assert piece, "the stream was cut"
            received += len(piece)
            last = (last + piece)[-64:]
        writer.close()
        assert received > size
        assert resident(kvgate.process) - before < 24 << 20
