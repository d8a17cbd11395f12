"""The differences from nginx that are meant, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Cases in which kvgate does something else than nginx.

    Attributes:
        cases: their names; one that ends in `*` stands for all that begin so.
        refused: whether nothing of them reaches an engine.
        reason: why that is right.
    """

    cases: tuple[str, ...]
    refused: bool
    reason: str

    def covers(self, name: str) -> bool:
        return any(covers(case, name) for case in self.cases)


def covers(case: str, name: str) -> bool:
    """Whether a case of a row stands for the one of that name."""
    return name.startswith(case[:-1]) if case.endswith("*") else name == case


DIFFERENCES = (
    Difference(
        ("method: TRACE", "target+ (1): %", "target+ (3): %zz", "target+ (3): %00", "target: /../v1/embeddings",
         "target: *", "target: /v1/..%2f..%2fetc", "target: /%"),
        True,
        "Both refuse them. Here they are methods and paths that are not in the table of routes, as many others, and it "
        "is clear where they end: the connection stays.",
    ),
    Difference(
        ("method: PRI", "method: FOO", f"method: {'A' * 60}", "target+ (4): ?a=\\x80", "target+ (1): \\x80",
         "target+ (2): \\xc3\\xa9", "field (4): a: \\x01", "field (4): a: \\x7f", "field (6): a: b\\x0bc"),
        True,
        "Both refuse them, nginx where the server behind does. To httptools they are no HTTP, and then nobody knows "
        "where the next request begins: the connection ends.",
    ),
    Difference(
        ("version: HTTP/1.2", "version: HTTP/1.9", "version: HTTP/1.10", "version: HTTP/1.01", "version: HTTP/1.1 ",
         "version: none", "line: GET /livez\\r\\n"),
        True,
        "HTTP/1.1 and HTTP/1.0 are written in one way, and 0.9 has no headers.",
    ),
    Difference(
        ("target: //v1/embeddings", "target: /v1//embeddings", "target: /./v1/embeddings",
         "target: /v1/../v1/embeddings", "target: /v1/%2e%2e/v1/embeddings"),
        True,
        "nginx tidies the path up to find its location, and passes on what was sent. Here a path is in the table of "
        "routes as it was sent, or it is refused.",
    ),
    Difference(
        ("target+ (1): ?", "target+ (5): #frag", "target+ (7): ?a#frag"),
        False,
        "A query without anything in it is left out, and so is a fragment, which is no part of a request's target.",
    ),
    Difference(
        ("target: http://x:99999/v1/embeddings", "host: x:abc", "host: [::1", "host: x@y", "host: x\\x80", "host: x#",
         "host: x?y", "host: x\\\\y", "host: x|y", "host: <x>", "host: x:80:80"),
        True,
        "They are no hosts (RFC 9110, 7.2), and a server that finds one in them finds another one than the next.",
    ),
    Difference(
        ("field (1): a", "field (7): a(b): c", "field (5): a\\x80: c", "both (1): transfer-encoding;: chunked",
         "both (-1): transfer-encoding;: chunked", "both (small): transfer-encoding;: chunked"),
        True,
        "nginx passes over lines that are no headers. Who knows who reads them as what: the request is refused.",
    ),
    Difference(
        ("field (9): a: b\\nc: d", "field (5): a: b\\r", "line: GET /livez HTTP/1.1\\nhost: x\\n\\n",
         "line: GET /livez HTTP/1.1\\r\\nhost: x\\n\\r\\n", "line: GET /livez HTTP/1.1\\r\\nhost: x\\r\\n\\n",
         "line: GET /livez HTTP/1.1\\nhost: x\\r\\n\\r\\n", "chunks: LF *"),
        True,
        "Lines end with CR and LF. Who takes less (RFC 9112, 2.2, allows it) sees lines where others see none.",
    ),
    Difference(
        ("length: 28\\t", "coding: \\tchunked"),
        False,
        "A tab around a header's value is white space (RFC 9110, 5.5), and to nginx a part of it.",
    ),
    Difference(
        ("length: 0", "length: 27", "length: 30", "length's name: content_length", "lengths: none",
         "both (1): transfer_encoding: chunked", "both (-1): transfer_encoding: chunked",
         "both (small): transfer_encoding: chunked", "chunks: only an end", "upgrade with a request inside: *"),
        True,
        "Both take the body for the body. It is no JSON object then, which is refused here; the echo behind nginx does "
        "not mind.",
    ),
    Difference(
        ("chunks: extension with NUL", "chunks: trailing space", "chunks: trailing tab", "chunks: size too large",
         "chunks: half an end", "chunks: a trailer *", "chunks: a folded trailer"),
        True,
        "nginx reads the digits of a chunk's size, and passes over what is around it, and over trailers. Here all "
        "of it has to be as RFC 9112, 7.1, says, for the same reason as with lines that are no headers.",
    ),
    Difference(
        ("chunks: 2^32 and the length",),
        True,
        "A body that is too large is refused when so much of it has arrived, not when it is announced by a chunk.",
    ),
    Difference(
        ("upgrade: h2c as curl asks for it", "upgrade with chunks: h2c as curl asks for it",
         "connection: connection: x-secret; x-secret: a", "connection: trailer: x-late"),
        False,
        "What is about one connection, by its own name or because `Connection` names it, goes no further (RFC 9110, "
        "7.6.1); nginx passes it on.",
    ),
    Difference(
        ("connection: proxy-connection: close", "connection: HTTP/1.0 keep-alive"),
        False,
        "The connection ends after the answer: httptools reads `Proxy-Connection` as it does `Connection`, and a "
        "connection of HTTP/1.0 is not kept.",
    ),
    Difference(
        ("line: GET",),
        True,
        "Both refuse what comes of it; here the connection ends.",
    ),
)  # fmt: skip
