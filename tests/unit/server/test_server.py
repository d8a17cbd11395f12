import asyncio
import contextlib
import functools
import gc
import socket

import httpx
import pytest

from gateway.config.settings import ServerSettings
from gateway.server.http_protocol import LimitedProtocol
from gateway.server.last_call import LAST_WORD
from gateway.server.server import _MOST_LINGERING, Listener, PortTakenError, _Refused, bind, bind_all
from tests.ports import free_port
from tests.until import until


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def listener(port=0, host="127.0.0.1", **settings):
    return Listener(app, bind(host, port), ServerSettings(**settings))


async def test_a_started_listener_answers_at_once_and_a_stopped_one_refuses():
    listening = listener()
    listening.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.port}", trust_env=False) as client:
        answer = await client.get("/")
        assert answer.text == "ok"
        assert "server" not in answer.headers
        await listening.stop()
        with pytest.raises(httpx.TransportError):
            await client.get("/")


async def test_a_taken_port_is_known_before_anything_starts():
    first = listener()
    first.start()
    with pytest.raises(PortTakenError, match=f"127.0.0.1:{first.port}: Address already in use"):
        listener(first.port)
    await first.stop()


async def test_a_host_that_is_not_ours_is_said_to_be():
    with pytest.raises(PortTakenError, match=r"cannot listen on 203\.0\.113\.1:"):
        listener(host="203.0.113.1")


def test_a_gateway_has_a_socket_for_clients_and_perhaps_one_for_its_operator():
    (main,) = bind_all(ServerSettings(host="127.0.0.1", port=0))
    both = bind_all(ServerSettings(host="127.0.0.1", port=0, admin_port=free_port()))
    try:
        assert both[0].getsockname()[0] == "127.0.0.1"
        assert len({listening.getsockname()[1] for listening in (main, *both)}) == 3
    finally:
        for listening in (main, *both):
            listening.close()


def test_of_two_ports_neither_is_kept_if_one_is_taken():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(PortTakenError) as refused:
            bind_all(ServerSettings(host="127.0.0.1", port=0, admin_port=number))
    assert refused.value.port == number
    del refused
    gc.collect()  # warns of a socket that was left open


async def test_other_limits_hold_for_what_comes_from_then_on():
    listening = Listener(app, bind("127.0.0.1", 0), ServerSettings(max_connections=1))
    listening.start()
    head = b"GET / HTTP/1.1\r\nhost: x\r\nx-large: " + b"x" * 1000 + b"\r\n\r\n"

    async def status():
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        writer.write(head)
        line = await reader.readline()
        return int(line.split()[1]), writer

    told, first = await status()
    assert told == 200
    told, second = await status()
    assert told == 503
    listening.govern(ServerSettings(max_connections=4, max_header_bytes=1000), None)
    told, third = await status()
    assert told == 431
    for writer in (first, second, third):
        writer.close()
    await listening.stop()


async def test_a_listener_that_never_started_stops_at_once():
    with bind("127.0.0.1", 0) as listening:
        await Listener(app, listening, ServerSettings()).stop()


async def test_stopping_does_not_wait_for_ever():
    begun = asyncio.Event()

    async def endless(scope, receive, send):
        begun.set()
        await asyncio.Event().wait()

    listening = Listener(endless, bind("127.0.0.1", 0), ServerSettings())
    listening.start()
    with socket.create_connection(("127.0.0.1", listening.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(begun.wait(), 5)
        await asyncio.wait_for(listening.stop(), 5)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6_is_an_address_like_any_other():
    try:
        listening = listener(host="::1")
    except PortTakenError:
        pytest.skip("no IPv6 here")
    listening.start()
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://[::1]:{listening.port}/")).text == "ok"
    await listening.stop()


async def asked(reader, writer, path="/"):
    """One request on an open connection; the head and the body of its answer."""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    return head.lower(), await reader.readexactly(2)


async def test_of_two_listeners_on_one_socket_the_other_takes_what_comes_after_one_retires(monkeypatch):
    monkeypatch.setattr("gateway.server.server.IDLE_GRACE", 0.1)
    shared = bind("127.0.0.1", 0)
    old, new = (Listener(app, shared.dup(), ServerSettings()) for _ in range(2))
    old.start()
    port = old.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    idle, idles = await asyncio.open_connection("127.0.0.1", port)
    assert b"connection: close" not in (await asked(reader, writer))[0]
    assert old.connections == 2
    old.retire()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        waiting = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/"))  # nobody accepts it yet
        assert b"connection: close" in (await asked(reader, writer))[0]
        assert await reader.read() == b"", "it was the last one"
        assert not waiting.done()
        new.start()
        assert (await waiting).text == "ok"
        assert (new.connections, old.connections) == (1, 1)
    assert await asyncio.wait_for(idle.read(), 5) == LAST_WORD, "an idle connection comes to its end too"
    idles.close()
    writer.close()
    await until(lambda: not old.connections)
    await old.stop()
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok", "the port is open as long as one listens"
    await new.stop()
    shared.close()


async def test_an_answer_that_has_begun_does_not_end_its_connection_but_the_next_one_does():
    go = asyncio.Event()

    async def streaming(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        if not go.is_set():
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
            await go.wait()
            await send({"type": "http.response.body", "body": b"k"})
        else:
            await send({"type": "http.response.body", "body": b"ok"})

    listening = Listener(streaming, bind("127.0.0.1", 0), ServerSettings())
    listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    begun = await reader.readuntil(b"\r\n\r\no")
    listening.retire()
    go.set()
    assert await reader.readexactly(1) == b"k"
    assert b"connection: close" not in begun
    head, body = await asked(reader, writer)
    assert b"connection: close" in head
    assert body == b"ok"
    writer.close()
    await listening.stop()


@pytest.mark.parametrize("read", ["before", "after", "not yet"])
async def test_a_request_that_is_half_there_when_idle_connections_end_is_served(monkeypatch, read):
    """Whether its first half was read before the listener retired or after, or is still with the kernel."""
    monkeypatch.setattr("gateway.server.server.IDLE_GRACE", 0.05)
    listening = listener()
    listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    await until(lambda: listening.connections == 1)
    (connection,) = listening._server.server_state.connections
    idle, idles = await asyncio.open_connection("127.0.0.1", listening.port)
    await until(lambda: listening.connections == 2)
    if read == "not yet":
        connection.flow.pause_reading()
    if read == "after":
        listening.retire()
    writer.write(b"GET / HTTP/1.1\r\nho")
    await until(connection._unread if read == "not yet" else lambda: connection._in_head)
    if read != "after":
        listening.retire()
    assert await idle.read() == LAST_WORD, "the time of those who are idle is over"
    connection.flow.resume_reading()
    writer.write(b"st: x\r\n\r\n")
    assert b"connection: close" in (await reader.readuntil(b"\r\n\r\n")).lower()
    writer.close()
    idles.close()
    await listening.stop()


async def test_an_idle_connection_gets_an_answer_at_the_end_as_its_next_request_may_be_on_its_way():
    listening = listener()
    listening.start()
    reader, writer = await connect(listening)
    stopping = asyncio.create_task(listening.stop())
    assert await reader.readexactly(len(LAST_WORD)) == LAST_WORD
    writer.write(GET)  # it crossed the answer: a reset would take that away
    assert await reader.read() == b""
    writer.close()
    await stopping


async def test_a_new_connection_gets_no_answer_before_it_asks_and_its_first_is_the_last():
    listening = listener()
    listening.start()
    reader, writer = await connect(listening, sent=b"")
    silent, silents = await connect(listening, sent=b"")
    await until(lambda: listening.connections == 2)
    stopping = asyncio.create_task(listening.stop())
    await until(lambda: not listening._server.servers[0].is_serving())
    assert reader._buffer == b""
    writer.write(GET)
    assert b"connection: close" in (await reader.readuntil(b"\r\n\r\n")).lower()
    assert await reader.read() == b"ok"
    assert await silent.read() == b"", "in the end it is closed"
    for each in (writer, silents):
        each.close()
    await stopping


async def test_a_request_that_is_half_there_at_the_end_is_served_and_is_the_last():
    listening = listener()
    listening.start()
    reader, writer = await connect(listening)
    writer.write(GET[:-2])
    await until(lambda: any(one._in_head for one in listening._server.server_state.connections))
    stopping = asyncio.create_task(listening.stop())
    await until(lambda: listening._protocol.ending)
    writer.write(GET[-2:])
    assert b"connection: close" in (await reader.readuntil(b"\r\n\r\n")).lower()
    assert await reader.read() == b"ok"
    writer.close()
    await stopping


async def test_an_answer_that_promised_to_go_on_is_followed_by_the_last_word():
    go = asyncio.Event()

    async def streaming(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await go.wait()
        await send({"type": "http.response.body", "body": b"k"})

    listening = Listener(streaming, bind("127.0.0.1", 0), ServerSettings())
    listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(GET)
    assert b"connection: close" not in await reader.readuntil(b"\r\n\r\no")
    stopping = asyncio.create_task(listening.stop())
    await until(lambda: not listening._server.servers[0].is_serving())
    go.set()
    assert await reader.read() == b"k" + LAST_WORD
    writer.close()
    await stopping


async def test_who_comes_when_all_places_are_taken_is_told_to_come_again():
    refused = []
    listening = Listener(
        app, bind("127.0.0.1", 0), ServerSettings(), most=2, on_refused=functools.partial(refused.append, 1)
    )
    listening.start()
    try:
        held = [await asyncio.open_connection("127.0.0.1", listening.port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        for reader, writer in held:
            assert b"200 OK" in await reader.readuntil(b"ok")
            writer.write(b"G")  # a request that has begun keeps its place
        for sent in (GET, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert b'"code":"gateway_full"' in answer
            writer.close()
        assert len(refused) == 2
        held[0][1].close()
        await until(lambda: listening.connections < 2)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.port}", trust_env=False) as client:
            assert (await client.get("/")).status_code == 200
    finally:
        for _, writer in held:
            writer.close()
        await listening.stop()


async def test_many_who_come_too_many_and_say_nothing_keep_nobody_from_being_told():
    listening = Listener(app, bind("127.0.0.1", 0), ServerSettings(), most=1, on_refused=lambda: None)
    listening.start()
    connections = []
    try:
        for sent in (b"G", *[b""] * 40, GET):
            connections.append(await asyncio.open_connection("127.0.0.1", listening.port))
            connections[-1][1].write(sent)
            await asyncio.sleep(0.001)
        answer = await asyncio.wait_for(connections[-1][0].read(), 5)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert len(_Refused.lingering) <= _MOST_LINGERING
    finally:
        for _, writer in connections:
            writer.close()
        await listening.stop()


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def connect(listening, address="127.0.0.1", sent=GET):
    """A connection from this address, answered once if it sent a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port, local_addr=(address, 0))
    writer.write(sent)
    if sent:
        assert b"200 OK" in await reader.readuntil(b"ok")
    return reader, writer


async def is_open(connection):
    reader, writer = connection
    writer.write(GET)
    try:
        return b"200 OK" in await reader.readuntil(b"ok")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def comes_in(listening):
    connection = await connect(listening, sent=b"")
    try:
        return await is_open(connection)
    finally:
        connection[1].close()


async def test_the_longest_idle_of_who_has_the_most_connections_gives_way(monkeypatch):
    monkeypatch.setattr("gateway.server.server._IDLE", 0.0)
    refused = []
    listening = Listener(
        app, bind("127.0.0.1", 0), ServerSettings(), most=4, on_refused=functools.partial(refused.append, 1)
    )
    listening.start()
    small = await connect(listening, "127.0.0.2")
    large = [await connect(listening) for _ in range(3)]
    new = await connect(listening, "127.0.0.3")
    assert await asyncio.wait_for(large[0][0].read(), 5) == b"", "closed"
    assert [await is_open(one) for one in (small, large[1], large[2], new)] == [True] * 4
    assert listening.connections == 4
    assert refused == []
    for _, writer in (small, *large, new):
        writer.close()
    await listening.stop()


async def test_a_connection_without_any_request_gives_way(monkeypatch):
    monkeypatch.setattr("gateway.server.server._IDLE", 0.0)
    listening = Listener(app, bind("127.0.0.1", 0), ServerSettings(), most=1)
    listening.start()
    silent = await connect(listening, sent=b"")
    new = await connect(listening)
    assert await asyncio.wait_for(silent[0].read(), 5) == b""
    for _, writer in (silent, new):
        writer.close()
    await listening.stop()


@pytest.mark.parametrize("before", [b"", GET], ids=["first request", "second request"])
async def test_a_head_that_does_not_come_gives_way(monkeypatch, before):
    monkeypatch.setattr("gateway.server.server._IDLE", 0.2)
    listening = Listener(app, bind("127.0.0.1", 0), ServerSettings(), most=1)
    listening.start()
    held = await connect(listening, sent=before)
    held[1].write(b"GET / HTTP/1.1\r\nx: ")
    await until(lambda: any(one._in_head for one in listening._server.server_state.connections))
    assert not await comes_in(listening), "it has only begun"
    trickling = 0
    while not await comes_in(listening):
        held[1].write(b"a")
        trickling += 1
        await asyncio.sleep(0.05)
    assert trickling < 40
    assert await asyncio.wait_for(held[0].read(), 5) == b""
    held[1].close()
    await listening.stop()


async def test_who_has_just_been_answered_or_waits_for_an_answer_keeps_the_place(monkeypatch):
    answering = asyncio.Event()

    async def waiting(scope, receive, send):
        if scope["path"] == "/wait":
            await answering.wait()
        await app(scope, receive, send)

    refused = []
    listening = Listener(
        waiting, bind("127.0.0.1", 0), ServerSettings(), most=1, on_refused=functools.partial(refused.append, 1)
    )
    listening.start()
    monkeypatch.setattr("gateway.server.server._IDLE", 0.0)
    held = await connect(listening)
    held[1].write(GET.replace(b"/ ", b"/wait "))
    await until(lambda: not all(one._owes_nothing() for one in listening._server.server_state.connections))
    assert not await comes_in(listening)
    answering.set()
    assert b"200 OK" in await held[0].readuntil(b"ok")
    monkeypatch.setattr("gateway.server.server._IDLE", 1000.0)
    assert not await comes_in(listening)
    assert len(refused) == 2
    held[1].close()
    await listening.stop()


async def test_an_answer_that_nobody_reads_keeps_its_place_as_it_stays_open(monkeypatch):
    monkeypatch.setattr("gateway.server.server._IDLE", 0.0)

    async def answers(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**24)})

    refused = []
    listening = Listener(
        answers, bind("127.0.0.1", 0), ServerSettings(), most=1, on_refused=functools.partial(refused.append, 1)
    )
    listening.start()
    with contextlib.ExitStack() as held:
        for sent in range(1, 4):
            client = held.enter_context(socket.create_connection(("127.0.0.1", listening.port), 5))
            client.sendall(GET)
            await until(lambda sent=sent: len(refused) == sent - 1 and not held_back(listening))
        assert listening.connections == 1
    await listening.stop()


def held_back(listening):
    """Whether a connection still waits for its answer to be written."""
    return not all(one.cycle is not None and one._owes_nothing() for one in listening._server.server_state.connections)


@pytest.mark.parametrize("size", [1000, 2**20])
async def test_who_does_not_read_its_answers_loses_its_connection(monkeypatch, size):
    monkeypatch.setattr("gateway.server.server.STALLED", 0.5)

    async def answers(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})

    listening = Listener(answers, bind("127.0.0.1", 0), ServerSettings())
    listening.start()
    try:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", listening.port))
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
            await until(lambda: listening.connections == 1)
            await until(lambda: listening.connections == 0)
    finally:
        await listening.stop()


async def test_large_answers_that_nobody_reads_take_no_more_memory_than_they_may(monkeypatch):
    """And those of one address leave room for others, and all of it when they are gone."""
    monkeypatch.setattr("gateway.server.http_protocol.MOST_UNREAD", 32 * 2**20)
    size = 6 * 2**20
    answered = []

    async def answers(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})
        answered.append(1)

    listening = Listener(answers, bind("127.0.0.1", 0), ServerSettings())
    listening.start()
    connections = listening._server.server_state.connections
    with contextlib.ExitStack() as held:

        def ask(address):
            client = held.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.bind((address, 0))
            client.connect(("127.0.0.1", listening.port))
            client.sendall(GET)

        for _ in range(12):
            ask("127.0.0.1")
        await until(lambda: len(answered) == 12)
        await until(lambda: len(connections) < 12)
        unread = sum(one.transport.get_write_buffer_size() for one in connections)
        assert size < unread <= 16 * 2**20
        before = len(connections)
        ask("127.0.0.2")
        await until(lambda: len(answered) == 13)
        await asyncio.sleep(0)
        assert len(connections) == before + 1
    await until(lambda: not connections)
    assert LimitedProtocol.unread.held == 0
    await listening.stop()
