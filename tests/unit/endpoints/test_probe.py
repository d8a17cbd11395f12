import asyncio
import errno
import gzip
import json
import socket
import ssl
import time

import httpx
import pytest
import uvloop

from gateway.config.settings import UpstreamSettings
from gateway.endpoints import probe
from gateway.endpoints.probe import Prober
from gateway.endpoints.replies import NoReply, Reply
from gateway.upstream.question_transport import QuestionTransport

URL = "http://127.0.0.1:8001/"


def asking(**more):
    """A client as the gateway makes it."""
    transport = QuestionTransport(UpstreamSettings, None)
    return httpx.AsyncClient(transport=transport, trust_env=False, **more)


@pytest.fixture
def prober(client, clock):
    return Prober(client, URL, 5.0, clock)


async def test_an_answer_is_its_status_body_and_time(prober, vllm, clock):
    vllm.answers["/x"] = b"hello"
    assert await prober.get("/x") == Reply(200, b"hello", clock.now)
    assert await prober.get("/none") == Reply(404, b"", clock.now)


async def test_work_is_asked_for_with_a_body_and_may_take_longer(prober, vllm, clock):
    vllm.answers["/x"] = b"hello"
    assert await prober.post("/x", b'{"a":1}') == Reply(200, b"hello", clock.now)
    assert vllm.bodies == [b'{"a":1}']


async def test_a_refused_connection_is_certain(prober, vllm):
    vllm.listening = False
    reply = await prober.get("/health")
    assert reply == NoReply("cannot connect: All connection attempts failed", refused=True)


def failed(cause):
    error = httpx.ConnectError("no connection")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (failed(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")), True),
        (
            failed(OSError("Multiple exceptions: [Errno 99] Connect call failed ('::1', 1, 0, 0), [Errno 111] ...")),
            True,
        ),
        (failed(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")), False),
        (failed(OSError(errno.EHOSTUNREACH, "No route to host")), False),
        (failed(ssl.SSLError("handshake failure")), False),
    ],
    ids=["refused", "one_address", "name", "route", "handshake"],
)
async def test_nothing_but_a_refusal_says_that_nobody_listens(prober, vllm, error, refused):
    vllm.answers["/health"] = error
    assert await prober.get("/health") == NoReply("cannot connect: no connection", refused=refused)


async def test_a_real_refusal_is_one(clock):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with asking() as client:
        for host in ("127.0.0.1", "localhost"):
            assert (await Prober(client, f"http://{host}:{port}", 2.0, clock).get("/health")).refused
        assert not (await Prober(client, "http://nowhere.invalid:1", 5.0, clock).get("/health")).refused


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadError(""),
        httpx.RemoteProtocolError("Server disconnected without sending a response."),
        httpx.DecodingError("bad gzip"),
        httpx.ReadTimeout("slow"),
        httpx.PoolTimeout("busy"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_broken_answer_is_not(prober, vllm, error):
    vllm.answers["/health"] = error
    reply = await prober.get("/health")
    assert isinstance(reply, NoReply)
    assert not reply.refused
    assert reply.reason.startswith("GET /health: ")
    assert len(reply.reason) > len("GET /health: ")


async def test_a_header_is_never_quoted(prober, vllm):
    vllm.answers["/health"] = httpx.RemoteProtocolError("Illegal header value b'Bearer hidden'")
    reply = await prober.get("/health")
    assert isinstance(reply, NoReply)
    assert "hidden" not in reply.reason


@pytest.mark.parametrize(
    ("scheme", "connecting", "asking"), [("http", 5.0, 0.1), ("https", 5.0, 0.1), ("https", 0.1, 5.0)]
)
@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_its_kernel_takes_is_taken_whatever_is_spoken_on_it(loop, scheme, connecting, asking, clock):
    """An engine that is busy makes no handshake either: its own loop does that."""
    settings = UpstreamSettings(connect_timeout=connecting)
    transport = QuestionTransport(lambda: settings, None)

    async def ask(port):
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            prober = Prober(client, f"{scheme}://127.0.0.1:{port}", asking, clock)
            return await prober.get("/health"), prober.unanswered_at

    with socket.create_server(("127.0.0.1", 0)) as busy, asyncio.Runner(loop_factory=loop) as runner:
        reply, unanswered_at = runner.run(ask(busy.getsockname()[1]))
        accepted, _ = busy.accept()
        with accepted:
            accepted.settimeout(5)
            while accepted.recv(2**16):
                pass  # what was asked, and then the end of the connection
    assert reply.accepted
    assert "no answer within" in reply.reason
    assert unanswered_at == clock.now


async def test_silence_ends_with_the_timeout(client, vllm, clock):
    vllm.silent.clear()
    reply = await Prober(client, URL, 0.01, clock).get("/health")
    assert reply == NoReply("GET /health: no answer within 0.01 s", accepted=True)


async def test_a_busy_loop_of_our_own_is_not_silence(clock):
    loop = asyncio.get_running_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    busy: asyncio.Handle

    def work() -> None:
        nonlocal busy
        time.sleep(0.03)
        busy = loop.call_soon(work)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asking() as client:
            busy = loop.call_soon(work)
            reply = await Prober(client, url, 0.1, clock).get("/health")
            busy.cancel()
    assert reply == Reply(200, b"ok", clock.now)


async def test_silence_on_a_connection_that_was_there_already_is_one_that_was_taken(clock):
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with asking() as client:
            first = asyncio.create_task(client.get(f"{url}/health"))
            connection, _ = await loop.sock_accept(listener)
            with connection:
                await loop.sock_recv(connection, 65_536)
                await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await first
                reply = await Prober(client, url, 0.2, clock).get("/health")
    assert reply == NoReply("GET /health: no answer within 0.2 s", accepted=True)


async def test_a_real_connection_that_is_taken_and_never_answered_is_told_from_none(clock):
    """The kernel takes connections for a process that does nothing, until its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with asking() as client:
            prober = Prober(client, url, 0.2, clock)
            replies = [await prober.get("/health") for _ in range(4)]  # each stays in the backlog
    assert replies[0] == NoReply("GET /health: no answer within 0.2 s", accepted=True)
    assert replies[-1] == NoReply("GET /health: no answer within 0.2 s", accepted=False)


async def test_an_answer_without_end_is_not_read_on(prober, vllm, monkeypatch):
    monkeypatch.setattr(probe, "MAX_METRICS", 1000)
    vllm.answers["/metrics"] = b"x" * 1001
    assert isinstance(await prober.get("/metrics"), NoReply)


@pytest.mark.parametrize("values", [b"{}," * 20_000, b"0," * 70_000])
async def test_an_answer_of_too_many_values_is_not_read(prober, vllm, values):
    vllm.answers["/slots"] = b"[" + values + b"0]"
    assert await prober.get("/slots") == NoReply("GET /slots: more than 65536 values in its answer")


async def test_what_a_thousand_adapters_or_hundreds_of_slots_tell_is_read(prober, vllm):
    permission = {"id": "modelperm-0", "allow_view": True, "allow_sampling": True, "organization": "*", "group": None}
    card = {"id": "a", "object": "model", "created": 1, "root": "a", "parent": "m", "permission": [permission]}
    vllm.answers["/v1/models"] = json.dumps({"data": [card] * 2000}).encode()
    assert (await prober.get("/v1/models")).ok


@pytest.mark.parametrize(
    ("answer", "asleep"),
    [
        (b'{"is_sleeping":true}', True),
        (b'{"is_sleeping":false}', False),
        (404, None),
        (501, None),
        (500, NoReply("GET /is_sleeping answered 500")),
        (429, NoReply("GET /is_sleeping answered 429")),
        (b"", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"x":' + b"[" * 100_000, None),
    ],
)
async def test_sleep_is_known_only_where_the_route_is_served(prober, vllm, answer, asleep):
    vllm.answers["/is_sleeping"] = answer
    assert await prober.asleep() == asleep


async def test_a_base_path_is_kept_and_no_connection_is_kept_open(clock):
    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(head), head))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asking(headers={"authorization": "Bearer secret"}) as client:
        reply = await Prober(client, f"http://127.0.0.1:{port}/behind/", 5.0, clock).get("/health")
    assert isinstance(reply, Reply)
    assert reply.body.startswith(b"GET /behind/health HTTP/1.1\r\n")
    assert b"connection: close" in reply.body.lower()
    assert b"authorization: bearer secret" in reply.body.lower()


async def test_a_small_answer_cannot_grow_while_it_is_read(client, vllm, clock):
    """660 bytes that are compressed twice are 300 MB."""
    packed = gzip.compress(gzip.compress(bytes(10_000_000)))
    vllm.answers["/metrics"], vllm.answer_headers = packed, {"content-encoding": "gzip, gzip"}
    reply = await Prober(client, URL, 5.0, clock).get("/metrics")
    assert isinstance(reply, Reply)
    assert reply.body == packed
    assert vllm.headers["accept-encoding"] == "identity"
