import asyncio
import contextlib
import itertools
import struct
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.connection import ESTABLISHED, Connection
from gateway.upstream.interface import ConnectionLostError
from tests.unit.upstream.endpoint import CHUNKED, WHOLE, Server, fetch, upstream
from tests.until import PATIENCE, until


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
        async with asyncio.timeout(60):
            await gone.wait()


async def test_cancelling_while_the_head_is_awaited_closes_the_connection(server: Server) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        asked.set()
        await reader.read()
        gone.set()

    server.scripts = [silent]
    async with upstream() as client, asyncio.timeout(60):
        sending = asyncio.create_task(client.send(server.url, "POST", "/", [], b"{}"))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await gone.wait()


async def test_of_a_request_that_was_lost_nothing_is_kept(server: Server, memory: Callable[[], int]) -> None:
    async def lose(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await server.head(reader)

    server.scripts = [lose]
    async with upstream() as client:
        with contextlib.suppress(ConnectionLostError):
            await client.send(server.url, "POST", "/", [], bytes(4 * 2**20))
            raise AssertionError("it was answered")
        await until(lambda: memory() < 2**20)


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
    async with upstream() as client, asyncio.timeout(60):
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
    async with upstream() as client, asyncio.timeout(60):
        with pytest.raises(ConnectionLostError, match="over 64 KB of headers"):
            await fetch(client, server.url)
    assert sent < 30_000_000


async def test_many_small_chunks_are_a_body_like_any_other(server: Server) -> None:
    async def small(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(CHUNKED)
        for _ in range(50):
            writer.write(b"5\r\nabcde\r\n" * 1000)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    server.scripts = [small]
    async with upstream() as client, asyncio.timeout(60):
        assert await fetch(client, server.url) == b"abcde" * 50_000


async def test_a_request_that_was_answered_unread_leaves_no_connection(server: Server) -> None:
    """What is still to be sent of it would stand before the next one."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await asyncio.sleep(5)

    server.scripts = [early, server.answer]
    async with upstream() as client, asyncio.timeout(60):
        assert await fetch(client, server.url, bytes(32 << 20)) == b"ok"
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


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_that_can_have_no_body_has_no_length_either(server: Server, status: bytes) -> None:
    async def promises(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 5\r\nX-A: B\r\n\r\n" % status)
        await reader.read()

    server.scripts = [promises]
    async with upstream() as client:
        answer = await client.send(server.url, "GET", "/", [], b"")
        assert answer.headers == [(b"x-a", b"B")]
        assert await answer.read_some() == b""
        answer.close()


@pytest.mark.parametrize(
    "codings",
    [[b"gzip, chunked"], [b"gzip"], [b"gzip", b"chunked"], [b"chunked, chunked"], [b"identity"], [b""], [b"xchunked"]],
)
async def test_an_answer_in_an_unknown_transfer_coding_is_not_taken_for_a_plain_one(
    server: Server, codings: list[bytes]
) -> None:
    async def coded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        lines = b"".join(b"Transfer-Encoding: %b\r\n" % coding for coding in codings)
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n2\r\n\x1f\x8b\r\n0\r\n\r\n" % lines)
        writer.close()

    server.scripts = [coded]
    async with upstream() as client, asyncio.timeout(PATIENCE):
        with pytest.raises(ConnectionLostError, match="not HTTP"):
            await fetch(client, server.url)


async def test_a_coding_is_known_in_any_spelling(server: Server) -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTRANSFER-encoding:  Chunked \r\n\r\n2\r\nok\r\n0\r\n\r\n")
        await reader.read()

    server.scripts = [chunked]
    async with upstream() as client, asyncio.timeout(PATIENCE):
        assert await fetch(client, server.url) == b"ok"


@pytest.mark.parametrize(
    "begins",
    [b"SSH-2.0-OpenSSH_9.2\r\n", *(b"HTTP/1.1 %03d X\r\ncontent-length: 0\r\n\r\n" % n for n in (0, 99, 600, 999))],
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


@pytest.mark.parametrize("size", [10, 2**20])
async def test_a_request_arrives_whole_whatever_its_size(server: Server, size: int) -> None:
    got = b""

    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        got = await reader.readexactly(size)
        writer.write(WHOLE)

    server.scripts = [takes]
    sent = bytes(number % 251 for number in range(size))
    async with upstream() as client, asyncio.timeout(60):
        assert await fetch(client, server.url, sent) == b"ok"
    assert got == sent


async def test_a_large_request_is_written_in_pieces_as_fast_as_they_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With TLS, what is written is encrypted at once."""
    monkeypatch.setattr(Connection, "_tcp_info", lambda _: (ESTABLISHED, 0))
    connection, transport, written = Connection(), Mock(), bytearray()

    def write(data: bytes) -> None:
        assert len(data) <= 2**18
        written.extend(data)
        if len(written) > 2**20:
            connection.pause_writing()

    transport.write = write
    transport.get_write_buffer_size.return_value = 0
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    body = bytes(number % 251 for number in range(2**21))
    requesting = asyncio.create_task(connection.request(b"head", body))
    await asyncio.sleep(0)
    assert len(written) < 2**19  # others on the loop have their turn between two pieces
    await until(lambda: len(written) > 2**20)
    at_the_pause = len(written)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(written) == at_the_pause
    connection.data_received(WHOLE)
    await requesting
    assert not connection.reusable
    connection.resume_writing()
    assert len(written) > at_the_pause
    while len(written) < len(b"head") + len(body):
        connection.resume_writing()
    assert bytes(written) == b"head" + body


async def test_what_arrives_while_nobody_reads_waits_up_to_a_bound_and_is_read_at_once(server: Server) -> None:
    size, pieces = 2**14, 1000
    connections: list[asyncio.StreamWriter] = []

    async def firehose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await server.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (size * pieces))
        for _ in range(pieces):
            writer.write(b"x" * size)
            await writer.drain()

    server.scripts = [firehose]
    async with upstream() as client, asyncio.timeout(PATIENCE):
        answer = await client.send(server.url, "POST", "/", [], b"")
        await until(lambda: answer._connection._paused)  # type: ignore[attr-defined]
        first = await answer.read_some()
        assert 2**16 < len(first) < 2**19
        received = len(first)
        while piece := await answer.read_some():
            received += len(piece)
        assert received == size * pieces
        answer.close()


async def test_an_endpoint_that_speaks_unasked_loses_its_connection(server: Server) -> None:
    spoken, gone = asyncio.Event(), asyncio.Event()

    async def speaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(WHOLE)
        await spoken.wait()
        writer.write(WHOLE)
        await reader.read()
        gone.set()

    server.scripts = [speaks, server.answer]
    async with upstream() as client, asyncio.timeout(60):
        assert await fetch(client, server.url) == b"ok"
        spoken.set()
        await gone.wait()
        assert await fetch(client, server.url) == b"ok"
    assert server.connections == 2


async def test_no_request_is_sent_on_a_connection_that_was_never_made() -> None:
    connection = Connection()
    assert not connection.open
    connection.abort()
    with pytest.raises(ConnectionLostError):
        await connection.request(b"GET / HTTP/1.1\r\n\r\n", b"")
    assert connection.untouched


class TestDeliver:
    async def test_waits_for_a_sink_that_is_behind_before_more_is_read(self, server: Server) -> None:
        awaited = asyncio.Event()

        async def one_by_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.head(reader)
            writer.write(CHUNKED + b"1\r\na\r\n")
            await awaited.wait()
            writer.write(b"1\r\nb\r\n")
            await writer.drain()
            writer.write(b"1\r\nc\r\n0\r\n\r\n")
            await reader.read()

        server.scripts = [one_by_one]
        told: list[bytes] = []

        def take(piece: bytes) -> bool:
            told.append(piece)
            return False

        async def drained() -> None:
            told.append(b"-")
            awaited.set()
            await asyncio.sleep(0)
            told.append(b"+")

        async with upstream() as client, asyncio.timeout(60):
            answer = await client.send(server.url, "POST", "/", [], b"")
            await answer.deliver(take, drained)
            answer.close()
        assert b"".join(told) in {b"a-+b-+c-+", b"a-+bc-+"}

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

        async with upstream() as client, asyncio.timeout(60):
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

        async with upstream() as client, asyncio.timeout(60):
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

        async with upstream() as client, asyncio.timeout(60):
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
        async with upstream() as client, asyncio.timeout(60):
            answer = await client.send(server.url, "POST", "/", [], b"")
            with pytest.raises(ConnectionLostError):
                await answer.deliver(lambda _: True, _never)
            answer.close()


async def _never() -> None:
    raise AssertionError("the sink was never behind")


FRAMES = st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;a=b\r\n"])
CONTENTS = st.binary(min_size=1, max_size=40) | st.sampled_from(
    [b"5\r\nhello\r\n", b"\n\n", b"0\r\n\r\n", b"a" * 4096, b"a" * 4097]
)


class TestChunks:
    """Chunks that are passed on in the frame they came in."""

    async def begun(self, *, takes: bool | Exception | None = True) -> "Delivering":
        """A connection that hands on its answer."""
        delivering = Delivering(takes=takes)
        await delivering.begin()
        return delivering

    async def test_a_read_that_is_one_chunk_is_handed_over_as_it_came(self) -> None:
        to = await self.begun()
        to.arrives(b"1\r\na\r\n", b"2\r\nbc\r\n", b"3\r\nd", b"ef\r\n", b"1\r\ng\r\n1\r\nh\r\n", b"1\r\ni\r\n")
        assert to.taken == [b"a", (b"2\r\nbc\r\n", 3), b"d", b"ef", b"gh", (b"1\r\ni\r\n", 3)]
        to.arrives(b"0\r\n\r\n")
        await to.ended
        assert to.connection.reusable

    async def test_a_read_that_only_looks_like_a_chunk_is_none(self) -> None:
        to = await self.begun()
        to.arrives(b"1\r\na\r\n1", b"1\r\nb\r\n", bytes(14) + b"\r\n")
        assert to.content == b"ab\r\n" + bytes(14)
        to.arrives(b"1\r\ncxy")
        with pytest.raises(ConnectionLostError):
            await asyncio.wait_for(to.ended, PATIENCE)
        assert all(isinstance(piece, bytes) for piece in to.taken)

    async def test_a_chunk_that_is_left_is_handed_over_by_its_content(self) -> None:
        to = await self.begun(takes=None)
        to.arrives(b"1\r\na\r\n", b"2\r\nbc\r\n", b"0\r\n\r\n")
        await to.ended
        assert to.content == b"abc"

    async def test_a_receiver_that_is_behind_is_waited_for(self) -> None:
        to = await self.begun(takes=False)
        to.arrives(b"1\r\na\r\n", b"2\r\nbc\r\n")
        assert to.transport.pause_reading.call_count == 1
        to.arrives(b"2\r\nde\r\n")
        assert to.content == b"abc"
        await until(lambda: to.content == b"abcde")
        assert to.waited == 1
        assert to.transport.resume_reading.call_count == 1
        to.arrives(b"0\r\n\r\n")
        await to.ended
        assert to.content == b"abcde"

    async def test_what_the_receiver_raises_is_raised_and_the_connection_is_not_used_again(self) -> None:
        to = await self.begun(takes=ValueError("no"))
        to.arrives(b"1\r\na\r\n", b"2\r\nbc\r\n", b"2\r\nde\r\n")
        with pytest.raises(ValueError, match="no"):
            await to.ended
        assert not to.connection.reusable
        assert to.content == b"a"

    async def test_what_was_no_body_is_made_up_for_by_them_too(self) -> None:
        to = await self.begun()
        to.arrives(b"1\r\na\r\n")
        for _ in range(40):
            to.arrives(b"1;" + b"a" * 4000 + b"\r\nb\r\n", b"1000\r\n" + bytes(4096) + b"\r\n")
        assert not to.transport.abort.called
        for _ in range(40):
            to.arrives(b"1;" + b"a" * 4000 + b"\r\nb\r\n", b"1\r\nc\r\n")
        assert to.transport.abort.called

    @settings(max_examples=300, deadline=None)
    @given(
        chunks=st.lists(st.tuples(FRAMES, CONTENTS), max_size=12),
        cuts=st.lists(st.integers(min_value=0, max_value=2**14), max_size=6),
        trailer=st.sampled_from([b"", b"5: x\r\n"]),
        whole=st.booleans(),
    )
    def test_however_a_body_is_framed_and_cut_each_byte_is_handed_over_once(
        self, chunks: Sequence[tuple[bytes, bytes]], cuts: Sequence[int], trailer: bytes, *, whole: bool
    ) -> None:
        framed = [frame % len(content) + content + b"\r\n" for frame, content in chunks]
        body = b"".join(framed)
        edges = list(itertools.accumulate(map(len, framed))) if whole else [cut % (len(body) + 1) for cut in cuts]
        reads = [body[start:end] for start, end in itertools.pairwise(sorted({0, *edges, len(body)}))]

        async def arrive() -> None:
            to = await self.begun()
            to.arrives(*reads, b"0\r\n" + trailer + b"\r\n")
            await to.ended
            assert to.content == b"".join(content for _, content in chunks)
            assert to.connection.reusable

        asyncio.run(arrive())


class Delivering:
    """A connection without a socket, whose answer has begun, and what it hands over."""

    def __init__(self, *, takes: bool | Exception | None) -> None:
        self.takes = takes
        self.taken: list[bytes | tuple[bytes, int]] = []
        self.waited = 0
        self.connection = Connection()
        self.transport = Mock()
        self.transport.is_closing.return_value = False
        self.transport.get_write_buffer_size.return_value = 0
        established = struct.pack("=B119xQ", 1, 0)
        self.transport.get_extra_info.return_value.getsockopt.return_value = established

    async def begin(self) -> None:
        self.connection.connection_made(self.transport)
        head = asyncio.create_task(self.connection.request(b"", b""))
        await asyncio.sleep(0)
        self.connection.data_received(CHUNKED)
        await head
        self.ended = asyncio.create_task(self.connection.deliver(self.take, self.drained, self.take_chunk))
        await asyncio.sleep(0)

    def arrives(self, *reads: bytes) -> None:
        for read in reads:
            self.connection.data_received(read)

    def take(self, piece: bytes) -> bool:
        self.taken.append(piece)
        return True

    def take_chunk(self, chunk: bytes, start: int) -> bool | None:
        if isinstance(self.takes, Exception):
            raise self.takes
        if self.takes is not None:
            self.taken.append((chunk, start))
        return self.takes

    async def drained(self) -> None:
        self.waited += 1

    @property
    def content(self) -> bytes:
        return b"".join(one if isinstance(one, bytes) else one[0][one[1] : -2] for one in self.taken)
