import time

import pytest

from gateway.server.framing import BadRequestError, ChunkedBody, CountedBody, framed, head_end

HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")
WHOLE = b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\na: b\r\nauthorization: late\r\n\r\n"


def taken(body, *pieces):
    """What the body comes to when it arrives in these pieces, and what is left over."""
    buffer = bytearray()
    content = b""
    for piece in pieces:
        buffer += piece
        if not body.ended:
            content += body.take(buffer)
    return content, bytes(buffer)


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_a_body_in_chunks_is_the_same_however_it_is_cut_and_what_follows_is_left(at):
    body = ChunkedBody(1000)
    assert taken(body, WHOLE[:at], WHOLE[at:] + b"GET /") == (b"hello!", b"GET /")
    assert body.ended


def test_a_counted_body_ends_where_it_said():
    body = CountedBody(5)
    assert taken(body, b"he", b"lloGET /") == (b"hello", b"GET /")
    assert body.ended


def test_nothing_is_kept_of_a_chunk_that_has_not_ended():
    buffer = bytearray(b"ffff\r\nabc")
    assert ChunkedBody(1000).take(buffer) == b"abc"
    assert buffer == b""


@pytest.mark.parametrize(
    "bad",
    [
        b"5\nhello", b"+5\r\n", b"0x5\r\n", b"\r\n", b"5 \r\n", b"5\r\nhelloX", b"5\r\nhello\n", b"5;a\nb\r\n",
        b"5;" + b"a" * 5000, b"0\r\na b: c\r\n", b"0\r\na\r\n", b"0\r\n b: c\r\n", b"0\r\na: b\n",
        b"0\r\na: " + b"b" * 2000,
        b"0\r\n" + b"a: b\r\n" * 500, b"1" + b"0" * 16 + b"\r\n",
    ],
)  # fmt: skip
def test_a_body_that_could_be_read_in_two_ways_is_refused_as_soon_as_that_is_seen(bad):
    with pytest.raises(BadRequestError):
        taken(ChunkedBody(1000), *(bad[at : at + 1] for at in range(len(bad))))


def test_a_great_many_chunks_are_taken_in_turns():
    body, buffer = ChunkedBody(1000), bytearray(b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
    pieces = [body.take(buffer)]
    while body.more:
        pieces.append(body.take(buffer))
    assert [len(piece) for piece in pieces] == [4096, 4096, 1808]
    assert body.ended
    assert not buffer


@pytest.mark.parametrize(
    ("head", "end"),
    [(b"GET / HTTP/1.1\r\n\r\nx", 18), (b"a\n\nx", 3), (b"a\n\r\nx", 4), (b"a\r\nb\r\n", None), (b"", None)],
)
def test_a_head_ends_with_the_first_blank_line(head, end):
    assert head_end(bytearray(head), 0) == end


def test_a_request_has_the_body_that_its_head_says():
    assert framed(b"GET", b"HTTP/1.1", [HOST], 9) is None
    assert framed(b"GET", b"HTTP/1.0", [], 9) is None
    assert framed(b"GET", b"HTTP/1.1", [HOST, (b"content-length", b"0")], 9) is None
    assert isinstance(framed(b"GET", b"HTTP/1.1", [HOST, (b"content-length", b"7")], 9), CountedBody)
    assert isinstance(framed(b"GET", b"HTTP/1.1", [HOST, (b"transfer-encoding", b" Chunked")], 9), ChunkedBody)


@pytest.mark.parametrize(
    ("method", "protocol", "headers", "status"),
    [
        (b"CONNECT", b"HTTP/1.1", [HOST], 405),
        (b"GET", b"HTTP/2.0", [HOST], 505),
        (b"GET", b"RTSP/1.0", [HOST], 505),
        (b"GET", b"HTTP/1.1", [], 400),
        (b"GET", b"HTTP/1.1", [HOST, HOST], 400),
        (b"GET", b"HTTP/1.1", [(b"host", b"x/y")], 400),
        (b"GET", b"HTTP/1.1", [(b"host", b"")], 400),
        (b"GET", b"HTTP/1.1", [HOST, (b"authorization", b"a"), (b"authorization", b"b")], 400),
        (b"POST", b"HTTP/1.1", [HOST, CHUNKED, (b"content-length", b"5")], 400),
        (b"POST", b"HTTP/1.1", [HOST, (b"content-length", b"5".zfill(5000))], 400),
        (b"POST", b"HTTP/1.0", [HOST, CHUNKED], 400),
        (b"POST", b"HTTP/1.1", [HOST, CHUNKED, CHUNKED], 501),
        (b"POST", b"HTTP/1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], 501),
    ],
)
def test_what_is_not_served_or_could_be_read_in_two_ways_is_refused(method, protocol, headers, status):
    with pytest.raises(BadRequestError) as refused:
        framed(method, protocol, headers, 9)
    assert refused.value.status == status


def test_a_trailer_that_comes_byte_by_byte_is_read_once():
    body, buffer = ChunkedBody(65536), bytearray(b"0\r\na:")
    body.take(buffer)
    buffer += b"x" * 60_000
    body.take(buffer)
    began = time.thread_time()
    for _ in range(2000):
        buffer += b"x"
        body.take(buffer)
    assert time.thread_time() - began < 0.05, "read anew at each byte it takes three times as long"
    for byte in b"\r\nb: c\r\n\r\nGET":
        buffer.append(byte)
        if not body.ended:
            body.take(buffer)
    assert body.ended
    assert buffer == b"GET"
