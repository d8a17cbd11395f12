"""What a client may send, in tables: each row is the bytes of one connection."""

from collections.abc import Iterator
from dataclasses import dataclass

CASE = b"0000"
"""Stands for the number of the case: by it a server behind tells whose request it saw."""
BODY = b'{"model":"fake","input":"x"}'
SMALL = b'{"input":0}'
TARGET = b"/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes that a client sends, in pieces with a little time between them.

    Attributes:
        half_close: the client says after them that it sends no more.
    """

    name: str
    pieces: tuple[bytes, ...]
    half_close: bool = False


def request(
    *headers: bytes,
    line: bytes = b"POST " + TARGET + b" HTTP/1.1",
    host: bytes | None = b"host: x",
    body: bytes = b"",
) -> bytes:
    """A request with these lines, and no others but the number of its case."""
    lines = [line, *([host] if host is not None else []), b"x-case: " + CASE, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def counted(*headers: bytes, body: bytes = BODY, **given: bytes | None) -> bytes:
    """The same with a length that is right."""
    return request(*headers, b"content-length: %d" % len(body), body=body, **given)


def chunked(body: bytes, *headers: bytes) -> bytes:
    """The same with a body that is said to be in chunks."""
    return request(*headers, b"transfer-encoding: chunked", body=body)


def chunk(content: bytes = BODY) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


CHUNKS = chunk() + b"0\r\n\r\n"
LIVEZ = b"GET /livez HTTP/1.1"
INNER = counted(b"x-inner: smuggled")
"""What is hidden in another request's body."""

METHODS = (
    b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH", b"PRI", b"post", b"Post", b"FOO", b"PROPFIND",
    b"M-SEARCH", b"G ET", b"P\tOST", b"POST/", b"P\xd6ST", b"POST\x00", b"", b"A" * 100, b"POST:", b"(POST)",
)  # fmt: skip
VERSIONS = (
    b"HTTP/1.0", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/3.0", b"HTTP/1", b"HTTP/1.10", b"HTTP/11",
    b"http/1.1", b"HTTP/1.1 ", b"HTTP/1.1 x", b"HTTP /1.1", b"HTTPS/1.1", b"HTTP/01.1", b"HTTP/1.01", b"HTTP/1.1\t",
    b"HTTP/1,1", b"HTTP/-1.1", b"HTTP/", b"ICE/1.0", b"RTSP/1.0",
)  # fmt: skip
TARGETS = (
    b"?a=b", b"?a=b?c=d", b"?", b"?a=%00", b"?a=\x80", b"?q=%zz", b"#frag", b"?a#frag", b"/", b";x=1", b"%", b"%zz",
    b"%00", b"\x80", "é".encode(), b"?a b", b"\t", b"\x01", b"\x00", b"\x7f", b"|", b"?<>", b'?"', b"?{}", b"?^`",
    b"?" + b"a" * 7000, b"?" + b"a" * 20_000, b"?" + b"a" * 100_000,
)  # fmt: skip
"""Behind the path."""
FORMS = (
    b"/v1/%65mbeddings", b"/v1/embeddings%20", b"//v1/embeddings", b"/v1//embeddings", b"/./v1/embeddings",
    b"/v1/../v1/embeddings", b"/v1/%2e%2e/v1/embeddings", b"/v1%2fembeddings", b"/../v1/embeddings", b"/V1/Embeddings",
    b"http://x/v1/embeddings", b"http://other:1/v1/embeddings?a=b", b"https://x/v1/embeddings",
    b"HTTP://X/v1/embeddings", b"ftp://x/v1/embeddings", b"http:///v1/embeddings", b"http://u:p@x/v1/embeddings",
    b"http://x:99999/v1/embeddings", b"http://x", b"http://x?a", b"http:/v1/embeddings", b"x:80", b"x", b"*", b"",
    b"v1/embeddings", b"\\v1\\embeddings", b"?a=b", b"://x/", b"/nothing", b"/v1/..%2f..%2fetc", b"/%",
)  # fmt: skip
HOSTS = (
    b"", b"x:80", b"x:", b"x:abc", b"x:99999", b"[::1]", b"[::1]:80", b"[::1", b"x y", b"x/y", b"x@y", b"x,y", b"x\ty",
    b"a..b", b".a", b"a.", b"%41", b"x\x80", b"x#", b"x?y", b"-", b"*", b"_", b"x\\y", b"x;y", b"x|y", b"<x>",
    b"x:80:80", b"a" * 300,
)  # fmt: skip
FIELDS = (
    b"a b: c", b"a : c", b": c", b"a", b"a\tb: c", b"a_b: c", b"a.b: c", b"a(b): c", b"a\x80: c", b"a\x00: c",
    b"a: \x80", b"a: \x00", b"a: \x01", b"a: \x7f", b"a: \t", b"a:", b"a:b", b"a: b\rc", b"a: b\nc: d", b"a: b\r\n c",
    b"a: b\r\n\tc", b"a: b\r\n \r\n", b" a: b", b"\ta: b", b"a\r\n: b", b"a: b\r", b"a: b\x0bc", b"a: " + b"b" * 7000,
    b"a: " + b"b" * 40_000, b"a: " + b"b" * 100_000, b"a" * 7000 + b": b",
    b"\r\n".join(b"h%d: x" % n for n in range(90)),
    b"\r\n".join(b"h%d: xxxxxxxxxxxxxxxxxxxx" % n for n in range(5000)),
    b"authorization: a\r\nauthorization: b",
    b"cookie: a\r\ncookie: b", b"content-type: a\r\ncontent-type: b", b"content-encoding: gzip",
)  # fmt: skip
LENGTHS = (
    b"28", b"0", b"27", b"30", b"+28", b"-1", b"28 ", b" 28", b"28,28", b"28, 28", b"28,0", b"0x1c", b"1c", b"028", b"",
    b" ", b"28abc", b"28.0", b"3e1", b"18446744073709551616", b"18446744073709551644", b"9223372036854775807",
    b"99999999999999999999999999", b"2 8", b"28\t", b"\x0b28", b"28\x00", b"\xb228", b"28;", b"28\r\n ", b"\r\n 28",
)  # fmt: skip
CODINGS = (
    b"Chunked", b"CHUNKED", b" chunked ", b"\tchunked", b"\x0bchunked", b"chunked\x0b", b"chunked\x00", b"chunked,",
    b",chunked", b"chunked, chunked", b"identity", b"identity, chunked", b"gzip, chunked", b"chunked, gzip", b"gzip",
    b"chunked;q=1", b"chunked ;", b"", b"chunke", b"xchunked", b'"chunked"', b"chunked chunked", b"chun\r\n ked",
    b"\r\n chunked", b"chunked\r\ntransfer-encoding: chunked", b"identity\r\ntransfer-encoding: chunked",
    b"chunked\r\ntransfer-encoding: identity", b"chunked\r\ntransfer-encoding: x", b"\xa0chunked", b"c\x68unked",
)  # fmt: skip
BOTH = (
    b"transfer-encoding: chunked", b"Transfer-Encoding: chunked", b"transfer-encoding : chunked",
    b"transfer-encoding:\x0bchunked", b"transfer-encoding: xchunked", b"transfer-encoding: x, chunked",
    b" transfer-encoding: chunked", b"x: y\n transfer-encoding: chunked", b"x: y\ntransfer-encoding: chunked",
    b"x: y\rtransfer-encoding: chunked", b"transfer-encoding\r\n : chunked", b"transfer_encoding: chunked",
    b"transfer-encoding: identity", b"transfer-encoding:", b"transfer-encoding: chunked\r\ntransfer-encoding: x",
    b"transfer-encoding\x00: chunked", b"transfer-encoding;: chunked", b"\x00transfer-encoding: chunked",
)  # fmt: skip
"""Besides a length: each hides a request from one of two servers that understand it differently."""
CHUNKINGS = {
    "one": CHUNKS,
    "two": chunk(BODY[:5]) + chunk(BODY[5:]) + b"0\r\n\r\n",
    "each byte its own": b"".join(chunk(BODY[n : n + 1]) for n in range(len(BODY))) + b"0\r\n\r\n",
    "upper case": CHUNKS.replace(b"1c", b"1C"),
    "leading zero": b"0" + CHUNKS,
    "many leading zeros": b"0" * 30 + CHUNKS,
    "several last zeros": chunk() + b"000\r\n\r\n",
    "extension": CHUNKS.replace(b"1c", b"1c;a"),
    "extension with a value": CHUNKS.replace(b"1c", b"1c;a=b"),
    "quoted extension": CHUNKS.replace(b"1c", b'1c;a="b;c"'),
    "extension after a space": CHUNKS.replace(b"1c", b"1c ;a"),
    "extension after a tab": CHUNKS.replace(b"1c", b"1c\t;a"),
    "space in an extension": CHUNKS.replace(b"1c", b"1c; a = b"),
    "empty extension": CHUNKS.replace(b"1c", b"1c;"),
    "extension of the last": chunk() + b"0;a\r\n\r\n",
    "long extension": CHUNKS.replace(b"1c", b"1c;" + b"a" * 3000),
    "longer extension": CHUNKS.replace(b"1c", b"1c;" + b"a" * 20_000),
    "extension with LF": CHUNKS.replace(b"1c", b"1c;a\nb"),
    "extension with CR": CHUNKS.replace(b"1c", b"1c;a\rb"),
    "extension with NUL": CHUNKS.replace(b"1c", b"1c;a\x00"),
    "0x": b"0x" + CHUNKS,
    "plus": b"+" + CHUNKS,
    "minus": b"-" + CHUNKS,
    "leading space": b" " + CHUNKS,
    "trailing space": CHUNKS.replace(b"1c", b"1c "),
    "trailing tab": CHUNKS.replace(b"1c", b"1c\t"),
    "underscore": CHUNKS.replace(b"1c", b"1_c"),
    "no size": b"\r\n" + CHUNKS,
    "no digit": b"g\r\n\r\n0\r\n\r\n",
    "only an extension": b";a\r\n\r\n0\r\n\r\n",
    "2^64 - 1": b"ffffffffffffffff\r\n" + BODY,
    "2^64 and the length": b"1000000000000001c\r\n" + BODY + b"\r\n0\r\n\r\n",
    "2^32 and the length": b"10000001c\r\n" + BODY + b"\r\n0\r\n\r\n",
    "LF behind the size": CHUNKS.replace(b"1c\r\n", b"1c\n"),
    "LF behind the content": CHUNKS.replace(b"}\r\n", b"}\n"),
    "nothing behind the content": CHUNKS.replace(b"}\r\n", b"}"),
    "CR behind the size": CHUNKS.replace(b"1c\r\n", b"1c\r"),
    "CR CR LF behind the size": CHUNKS.replace(b"1c\r\n", b"1c\r\r\n"),
    "size too small": CHUNKS.replace(b"1c", b"1b"),
    "size too large": CHUNKS.replace(b"1c", b"1d"),
    "no end": chunk(),
    "half an end": chunk() + b"0\r\n",
    "only an end": b"0\r\n\r\n",
    "LF at the end": chunk() + b"0\n\n",
    "LF behind the end": chunk() + b"0\r\n\n",
    "a line behind the end": CHUNKS + b"\r\n",
    "a trailer": chunk() + b"0\r\nx-late: a\r\n\r\n",
    "an authorization behind": chunk() + b"0\r\nauthorization: Bearer late\r\n\r\n",
    "a flow behind": chunk() + b"0\r\nx-kvgate-flow: boss\r\n\r\n",
    "a length behind": chunk() + b"0\r\ncontent-length: 5\r\n\r\n",
    "a coding behind": chunk() + b"0\r\ntransfer-encoding: chunked\r\n\r\n",
    "a host behind": chunk() + b"0\r\nhost: y\r\n\r\n",
    "a trailer with a space": chunk() + b"0\r\na b: c\r\n\r\n",
    "a trailer without a colon": chunk() + b"0\r\nabc\r\n\r\n",
    "a trailer without a name": chunk() + b"0\r\n: a\r\n\r\n",
    "a folded trailer": chunk() + b"0\r\na: b\r\n c\r\n\r\n",
    "a trailer with LF": chunk() + b"0\r\na: b\nc: d\r\n\r\n",
    "a trailer with NUL": chunk() + b"0\r\na: \x00\r\n\r\n",
    "a trailer with CR": chunk() + b"0\r\na: b\rc\r\n\r\n",
    "many trailers": chunk() + b"0\r\n" + b"a: b\r\n" * 500 + b"\r\n",
    "far too many trailers": chunk() + b"0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
    "a large trailer": chunk() + b"0\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
    "a request behind": CHUNKS + INNER,
    "a request in an extension": CHUNKS.replace(b"1c", b"1c;\n" + INNER.replace(b"\r\n", b"\n")),
}
EXPECTATIONS = (b"100-continue", b"100-Continue", b"100-continue, x", b"200-ok", b"", b"x")
UPGRADES: dict[str, tuple[bytes, ...]] = {
    "h2c as curl asks for it": (
        b"connection: Upgrade, HTTP2-Settings",
        b"upgrade: h2c",
        b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA",
    ),
    "h2c without settings": (b"connection: upgrade", b"upgrade: h2c"),
    "websocket": (
        b"connection: upgrade",
        b"upgrade: websocket",
        b"sec-websocket-version: 13",
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "anything": (b"connection: upgrade", b"upgrade: foo/1, bar"),
    "not named by connection": (b"upgrade: h2c",),
    "not said which": (b"connection: upgrade",),
    "and close": (b"connection: upgrade, close", b"upgrade: h2c"),
}
CONNECTIONS: tuple[tuple[bytes, ...], ...] = (
    (b"connection: close",),
    (b"connection: Close",),
    (b"connection: keep-alive",),
    (b"connection: close, keep-alive",),
    (b"connection: keep-alive, close",),
    (b"connection: keep-alive", b"connection: close"),
    (b"connection: x-secret", b"x-secret: a"),
    (b"connection: content-length",),
    (b"connection: host",),
    (b"connection: content-type", b"content-type: application/json"),
    (b"connection: ",),
    (b"connection: ,",),
    (b"proxy-connection: close",),
    (b"keep-alive: timeout=5",),
    (b"te: trailers",),
    (b"te: trailers", b"connection: te"),
    (b"trailer: x-late",),
)
PIPELINES = {
    "two": (counted() + counted(),),
    "ten": (counted() * 10,),
    "two hundred small ones": (request(line=LIVEZ) * 200,),
    "a line between": (counted() + b"\r\n" + counted(),),
    "lines between": (counted() + b"\r\n\r\n\r\n" + counted(),),
    "LF between": (counted() + b"\n" + counted(),),
    "a space between": (counted() + b" " + counted(),),
    "of two kinds": (counted() + request(line=LIVEZ) + chunked(CHUNKS),),
    "the second is bad": (counted() + b"nonsense\r\n\r\n",),
    "the first is bad": (b"nonsense\r\n\r\n" + counted(),),
    "the first is the last": (counted(b"connection: close") + counted(),),
    "the first is the last and has no body": (request(b"connection: close", line=LIVEZ) + counted(),),
    "the first is unknown": (counted(line=b"POST /nothing HTTP/1.1") + counted(),),
    "the first is refused with its body": (counted(line=b"GET /nothing HTTP/1.1") + counted(),),
    "a GET with a body": (counted(line=LIVEZ) + counted(),),
    "a GET with chunks": (request(b"transfer-encoding: chunked", line=LIVEZ, body=CHUNKS) + counted(),),
    "HTTP/1.0 first": (counted(line=b"POST /v1/embeddings HTTP/1.0") + counted(),),
    "cut in the second head": (counted() + counted()[:20], counted()[20:]),
    "cut in the first body": ((counted() * 2)[:80], (counted() * 2)[80:]),
}
GARBAGE = (
    b"\r\n", b"\r\n" * 50, b"\n", b"\r", b" ", b"\x00", b"GET", b"GET /livez", b"{}", b"SSH-2.0-x\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"a" * 100_000,
    b"GET /livez\r\n", b"GET  /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /livez  HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET\t/livez\tHTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n\r\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"\rGET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
    b" GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /livez HTTP/1.1\nhost: x\n\n",
    b"GET /livez HTTP/1.1\r\nhost: x\n\r\n", b"GET /livez HTTP/1.1\r\nhost: x\r\n\n",
    b"GET /livez HTTP/1.1\nhost: x\r\n\r\n", b"GET /livez HTTP/1.1\rhost: x\r\r",
    b"GET /livez HTTP/1.1\r\r\nhost: x\r\n\r\n", b"GET /livez HTTP/1.1\r\n\r\nhost: x\r\n\r\n",
    b"GET /livez HTTP/1.1\r\n host: x\r\n\r\n", b"\xef\xbb\xbfGET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
)  # fmt: skip
HALVES = {
    "nothing": b"",
    "a GET": request(line=LIVEZ),
    "three GETs": request(line=LIVEZ) * 3,
    "a GET of HTTP/1.0": b"GET /livez HTTP/1.0\r\n\r\n",
    "a POST": counted(),
    "chunks": chunked(CHUNKS),
    "what is refused": b"nonsense\r\n\r\n",
    "what is unknown": request(line=b"GET /nothing HTTP/1.1"),
    "half a head": request(line=LIVEZ)[:-2],
    "half a body": counted()[:-5],
    "half of the chunks": chunked(chunk()),
    "a GET and half a head": request(line=LIVEZ) + b"GET /li",
}
WHOLE = chunked(CHUNKS.replace(b"1c", b"1c;a=b").replace(b"0\r\n\r\n", b"0\r\na: b\r\n\r\n")) + request(line=LIVEZ)
"""It has one of everything, and is cut everywhere."""


def cases() -> list[Case]:
    """All of them, with names of their own."""
    made = [*_lines(), *_heads(), *_bodies(), *_connections()]
    assert len({case.name for case in made}) == len(made)
    return made


def _one(table: str, row: object, *pieces: bytes) -> Case:
    return Case(f"{table}: {row if isinstance(row, str) else repr(row)[2:-1][:60]}", pieces)


def _lines() -> Iterator[Case]:
    """First lines, and what is none."""
    for method in METHODS:
        yield _one("method", method, counted(line=method + b" " + TARGET + b" HTTP/1.1"))
    for version in VERSIONS:
        yield _one("version", version, counted(line=b"POST " + TARGET + b" " + version))
    yield _one("version", "none", counted(line=b"POST " + TARGET))
    for target in TARGETS:
        yield _one(f"target+ ({len(target)})", target, counted(line=b"POST " + TARGET + target + b" HTTP/1.1"))
    for target in FORMS:
        yield _one("target", target, counted(line=b"POST " + target + b" HTTP/1.1"))
    for target in (b"x:80", b"/v1/embeddings", b"http://x/", b"x"):
        yield _one("connect", target, request(line=b"CONNECT " + target + b" HTTP/1.1") + counted())
    for garbage in GARBAGE:
        yield _one("line", garbage, garbage)


def _heads() -> Iterator[Case]:
    for host in HOSTS:
        yield _one("host", host, counted(host=b"host: " + host))
    yield _one("hosts", "none", counted(host=None))
    yield _one("hosts", "none in HTTP/1.0", counted(host=None, line=b"POST /v1/embeddings HTTP/1.0"))
    yield _one("hosts", "the same twice", counted(b"host: x"))
    yield _one("hosts", "two", counted(b"host: y"))
    other = counted(host=b"host: y", line=b"POST http://x/v1/embeddings HTTP/1.1")
    yield _one("hosts", "not that of the target", other)
    for field in FIELDS:
        yield _one(f"field ({len(field)})", field, counted(field))
    for length in LENGTHS:
        yield _one("length", length, request(b"content-length: " + length, body=BODY))
    for name in (b"Content-Length", b"CONTENT-LENGTH", b"content_length", b"content-length ", b"content-length\x00"):
        yield _one("length's name", name, request(name + b": 28", body=BODY))
    yield _one("lengths", "the same twice", counted(b"content-length: 28"))
    yield _one("lengths", "two", counted(b"content-length: 0"))
    yield _one("lengths", "none", request(body=BODY))
    for headers in CONNECTIONS:
        yield _one("connection", b"; ".join(headers), counted(*headers))
    old = counted(b"connection: keep-alive", line=b"POST /v1/embeddings HTTP/1.0")
    yield _one("connection", "HTTP/1.0 keep-alive", old)


def _bodies() -> Iterator[Case]:
    for coding in CODINGS:
        yield _one("coding", coding, request(b"transfer-encoding: " + coding, body=CHUNKS))
    yield _one("coding", "HTTP/1.0", chunked(CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"))
    for both in BOTH:
        for order in (1, -1):
            framing = (b"content-length: %d" % (len(INNER) + 5), both)[::order]
            yield _one(f"both ({order})", both, request(*framing, body=b"0\r\n\r\n" + INNER))
        yield _one("both (small)", both, request(b"content-length: 4", both, body=CHUNKS))
    for name, chunking in CHUNKINGS.items():
        yield _one("chunks", name, chunked(chunking))
    for expectation in EXPECTATIONS:
        expect = b"expect: " + expectation
        yield _one("expect", expectation, counted(expect))
        yield _one("expect, body later", expectation, request(expect, b"content-length: 28"), BODY)
    yield _one("expect", "chunks", chunked(CHUNKS, b"expect: 100-continue"))
    yield _one("expect", "HTTP/1.0", counted(b"expect: 100-continue", line=b"POST /v1/embeddings HTTP/1.0"))
    yield _one("expect", "no body", request(b"expect: 100-continue", line=LIVEZ))


def _connections() -> Iterator[Case]:
    """What is about more than one request."""
    for name, upgrade in UPGRADES.items():
        yield _one("upgrade", name, counted(*upgrade))
        yield _one("upgrade with chunks", name, chunked(CHUNKS, *upgrade))
        yield _one("upgrade with a request inside", name, counted(*upgrade, body=INNER))
        yield _one("upgrade of a GET", name, request(*upgrade, line=LIVEZ) + counted())
    for name, pieces in PIPELINES.items():
        yield _one("pipeline", name, *pieces)
    for name, half in HALVES.items():
        yield Case(f"half-closed: {name}", (half,), half_close=True)
    for at in range(1, len(WHOLE), 4):
        yield _one("cut", f"at {at}", WHOLE[:at], WHOLE[at:])
