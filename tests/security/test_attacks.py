"""What one hostile client or engine may cost: a row for each attack, with the figures it must keep."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.clock import unhindered
from tests.security.hostile import METRICS, Script, answer, stream_head
from tests.security.target import MOST_STRETCH, Answer, Target

pytestmark = pytest.mark.slow

MB = 1 << 20
MOST = 32 * MB
"""`server.max_body_bytes`: what a client can send."""

DRAIN = "/kvgate/endpoints/127.0.0.1:1/drain"
CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
BATCH = "/v1/chat/completions/batch"


@dataclass(frozen=True)
class Attack:
    """One hostile request and its answer."""

    name: str
    send: Callable[[Target], Answer]
    statuses: tuple[int, ...]
    """Any of these; 0 is a connection that was closed without an answer."""
    memory: int = 64 * MB
    """The most it may add to what is in use, over all processes of kvgate."""
    script: tuple[str, Script] | None = None
    """What the hostile engine answers, and where."""


def filled(before: bytes, filling: bytes, after: bytes, size: int = MOST) -> bytes:
    """A body of nearly that size."""
    return before + filling * ((size - len(before) - len(after)) // len(filling)) + after


def body(path: str, before: bytes, filling: bytes, after: bytes, size: int = MOST) -> Callable[[Target], Answer]:
    """Send one that is full of something."""
    return lambda target: target.post(path, filled(before, filling, after, size))


def batch(model: str, name: str, shared: object, conversations: int) -> Callable[[Target], Answer]:
    """Send a batch of empty conversations that share a field."""
    fields = {"model": model, "max_tokens": 1, name: shared, "messages": [[]] * conversations}
    return lambda target: target.post(BATCH, json.dumps(fields, separators=(",", ":")).encode())


def too_long(times: int, size: int) -> Callable[[Target], Answer]:
    """Ask so many times for more output than there is room for."""
    asked = b'{"model":"fake","max_tokens":99999,"messages":[{"role":"user","content":"a"}],"metadata":{"p":"'
    return lambda target: [target.post(CHAT, filled(asked, b"p", b'"}}', size)) for _ in range(times)][-1]


def form(
    head: bytes, filling: bytes, end: bytes = b"", *, boundary: str = "b", size: int = MOST
) -> Callable[[Target], Answer]:
    """Send a form for transcription."""
    kind = f"multipart/form-data; boundary={boundary}"
    return lambda target: target.post("/v1/audio/transcriptions", filled(head, filling, end, size), content_type=kind)


def field(name: str, filling: bytes, before: bytes = b"", after: bytes = b"") -> Attack:
    """A scalar that is none."""
    start, end = b'{"model":"fake","%b":%b' % (name.encode(), before), after + b',"messages":[]}'
    return Attack(f"{name} full of {filling[:8]!r}", body(CHAT, start, filling, end), (400,), memory=200 * MB)


MODEL_PART = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nfake\r\n'
FILE_PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'

VARIABLES, MANY = "chat_template_kwargs", {f"k{number}": 1 for number in range(4000)}

CUT = b'{"model":"fake","truncate_prompt_tokens":5,"max_tokens":1,'

CLIENTS = [
    Attack("a form of nothing but names", form(b"", b"name=model\r\n"), (400, 404), memory=192 * MB),
    Attack("a form of nothing but lines", form(b'--b\r\nname="model"\r\n', b"a:b\r\n"), (400, 404), memory=192 * MB),
    Attack("a form of nothing but parts", form(b"", b"--b\r\n\r\n\r\n"), (400,), memory=192 * MB),
    Attack(
        "a form of nothing but empty parameters",
        form(b"", b"--b\r\ncontent-disposition:%b\r\n\r\n\r\n" % (b";" * 8000), b"--b--\r\n", size=MB),
        (400,),
    ),
    Attack(
        "a form of nothing but escapes",
        form(b"", b'%b%b"\r\n\r\n\r\n' % (FILE_PART[:-9], b'\\"' * 4000), b"--b--\r\n", size=MB),
        (400, 404),
    ),
    Attack(
        "a form whose file is like its boundary",
        form(FILE_PART, b"\r\n-" + b"-" * 60, boundary="-" * 69 + "b"),
        (400,),
        memory=192 * MB,
    ),
    Attack(
        "a form whose model comes last", form(FILE_PART, b"\x00", b"\r\n" + MODEL_PART + b"--b--\r\n"), (404,), 192 * MB
    ),
    *(
        field(name, b"[],", b"[", b"1]")
        for name in ("model", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens", "priority")
    ),
    field("stream_options", b'{"a":', b"", b"1"),
    field("n", b"9"),
    field("max_tokens", b"9", b'"', b'"'),
    field("model", b"m", b'"', b'"'),
    field("model", b"\\u00e9", b'"', b'"'),
    Attack("top-level fields without end", lambda t: t.post(CHAT, many_fields()), (400, 404), 256 * MB),
    Attack("one field again and again", body(CHAT, b"{", b'"n":1,', b'"n":1}'), (400, 404), 256 * MB),
    Attack("arrays in arrays", body(CHAT, b'{"messages":', b"[", b"}"), (400,), 192 * MB),
    Attack("a prompt of digits", body(COMPLETIONS, b'{"model":"fake","prompt":[', b"1,", b"1]}"), (400,), 1024 * MB),
    Attack("a prompt of text", body(COMPLETIONS, b'{"model":"fake","prompt":"', b"ab ", b'"}'), (400,), 512 * MB),
    Attack(
        "a prompt that is cut short",
        body(COMPLETIONS, CUT + b'"prompt":"', b"the fox ", b'"}', 12 * MB),
        (200,),
        192 * MB,
    ),
    Attack(
        "a prompt of wide characters",
        body(COMPLETIONS, b'{"model":"fake","max_tokens":1,"prompt":"\xf0\x9f\x9a\x80', b"the fox ", b'"}'),
        (400,),
        640 * MB,
    ),
    Attack(
        "many prompts",
        body(COMPLETIONS, CUT + b'"prompt":["a"', b',"%b"' % (b"the fox " * 400), b"]}", 8 * MB),
        (200,),
        192 * MB,
    ),
    *(
        Attack(
            f"a million prompts of {model}",
            body(COMPLETIONS, b'{"model":"%b","prompt":[' % model.encode(), b"[1],", b"[1]]}", 4 * MB),
            (400, 404),
            256 * MB,
        )
        for model in ("fake", "hostile")
    ),
    Attack(
        "texts that an engine is to count",
        body(COMPLETIONS, b'{"model":"hostile","prompt":[', b'"",', b'""]}', MB // 4),
        (400, 404),
    ),
    Attack(
        "options and a large prompt",
        body(CHAT, b'{"model":"fake","stream":true,"stream_options":{},"messages":[],"x":"', b"ab", b'"}'),
        (200, 400),
        320 * MB,
    ),
    Attack(
        "usage to ask for, and a large prompt",
        body(CHAT, b'{"model":"fake","stream":true,"messages":[],"x":"', b"ab", b'"}'),
        (200, 400),
        320 * MB,
    ),
    Attack("conversations that share documents", batch("fake", "documents", [{}] * 5000, 3000), (400,)),
    Attack("conversations that share variables", batch("fake", VARIABLES, MANY, 3600), (400,)),
    Attack("conversations that share few variables", batch("fake", VARIABLES, MANY, 600), (200,)),
    Attack(
        "conversations that share what an engine is to count",
        batch("hostile", "mm_processor_kwargs", {"a": "x" * 100_000}, 300),
        (404, 503),  # the engine ends connections as it likes
    ),
    Attack("a large body of a change", body("/kvgate/adapters/load", b"", b"[", b""), (413,)),
    Attack("a drain through a proxy", lambda t: t.post(DRAIN, b"", "x-forwarded-for: 127.0.0.1"), (403,)),
    Attack("bodies that are too long, one after another", too_long(24, 8 * MB), (400,), 128 * MB),
    Attack("white space", body(CHAT, b'{"model":"none"', b" ", b"}"), (404,), 256 * MB),
    Attack("nothing to relay", body(TOKENIZE, b'{"prompt":[', b"[],", b"1]}"), (400, 404), 256 * MB),
    Attack("a model to relay to", body(TOKENIZE, b'{"model":"', b"m", b'"}'), (400, 404), 256 * MB),
    Attack("explain", body("/kvgate/explain", b'{"model":"fake","prompt":[', b"[],", b"1]}"), (400,), 1024 * MB),
    Attack("a path of slashes", lambda t: t.get("/v1/responses" + "/" * 60_000), (404,)),
    Attack("a model's name in a path", lambda t: t.get("/v1/models/" + "m" * 60_000), (404,)),
    Attack("a query of ampersands", lambda t: t.get("/readyz?" + "&a" * 30_000), (414,)),
    Attack("a query that is no boolean", lambda t: t.get("/readyz?strict=" + "9" * 60_000), (414,)),
    Attack("a time of digits", lambda t: t.post(CHAT, b"{}", "x-kvgate-ttft-ms: " + "1" * 60_000), (400,)),
    Attack("a cookie", lambda t: t.post(CHAT, b"{}", "cookie: " + "a=b;" * 15_000), (400,)),
    Attack("connection options", lambda t: t.post(TOKENIZE, b"{}", "connection: " + "a," * 30_000), (400,)),
    Attack("a request id", lambda t: t.post(CHAT, b"{}", "x-request-id: " + "a" * 60_000), (400,)),
    Attack("a bearer token", lambda t: t.post(CHAT, b"{}", "authorization: Bearer " + "a" * 60_000), (400,)),
    Attack("headers", lambda t: t.send(b"GET /livez HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * 60_000 + b"\r\n"), (431,)),
]


def many_fields() -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(MOST // 12)) + b"}"


def flood(head: bytes, piece: bytes, size: int) -> Script:
    """An answer of that size, in pieces."""

    def pieces() -> Iterator[bytes]:
        yield head
        large = piece * max(1, 65_536 // len(piece))
        for _ in range(size // len(large)):
            yield large

    return pieces


def asks(target: Target, *, stream: bool = False) -> Answer:
    words = b'{"model":"hostile","max_tokens":5,"messages":[],"stream":%b}' % (b"true" if stream else b"false")
    return target.post(CHAT, words)


INTERIM = b"HTTP/1.1 100 C\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def streams(target: Target) -> Answer:
    return asks(target, stream=True)


def probed(target: Target) -> Answer:
    """Wait until kvgate has asked the hostile engine how it is; for its models it does so every 30 seconds."""
    target.hostile.wait_asked()
    return target.get("/livez")


def probed_and_asked(target: Target) -> Answer:
    """Ask it for an answer, as it has just said of itself what it says."""
    target.hostile.wait_asked()
    target.hostile.wait_asked()
    return asks(target)


def engine(name: str, path: str, head: bytes, piece: bytes, size: int, *statuses: int, send=asks) -> Attack:
    """What an engine answers on a path: a head, and so much of one thing."""
    return Attack(name, send, statuses, 96 * MB, (path, flood(head, piece, size)))


def sequences() -> Iterator[bytes]:
    """A stream that tells how much it has generated for ever new sequences."""
    yield stream_head()
    for first in range(0, 4_000_000, 3000):
        choices = b",".join(b'{"index":%d}' % index for index in range(first, first + 3000))
        yield b'data: {"usage":{"completion_tokens":1},"choices":[%b]}\n\n' % choices


def metrics(name: str, head: bytes, piece: bytes) -> Attack:
    """A page of metrics that is nearly too large to be read."""
    return engine(f"metrics of {name}", "/metrics", stream_head("text/plain") + head, piece, 7 * MB, 200, send=probed)


ONE_BLOCK = answer(METRICS.replace(b'"4096"', b'"1"'), kind="text/plain")
GAUGE = b"vllm:num_requests_running"
ENGINES = [
    engine("an error", CHAT, answer(b'{"error":{"message":"', status="400 Bad", length=300 * MB), b"a", 300 * MB, 400),
    engine("a failure", CHAT, answer(b'{"error":{"message":"', status="500 Bad", length=300 * MB), b"a", 300 * MB, 502),
    engine("an answer of choices", CHAT, answer(b'{"choices":[', length=100 * MB), b"{},", 101 * MB, 200),
    engine("a small answer of choices", CHAT, answer(b'{"choices":[', length=4_000_000), b"{},", 8 * MB, 200),
    engine("an answer of reasons", CHAT, answer(b'{"choices":[', length=4_000_000), b'"finish_reason":1,', 8 * MB, 200),
    engine("an answer without end", CHAT, stream_head("application/json"), b"{},", 300 * MB, 200),
    engine(
        "an event of choices",
        CHAT,
        stream_head() + b'data: {"usage":{},"choices":[',
        b"{},",
        30 * MB,
        200,
        502,
        send=streams,
    ),
    engine("events full of marks", CHAT, stream_head(), b'data: {"usage":{}}\n\n', 20 * MB, 200, 502, send=streams),
    Attack("ever new sequences", streams, (200,), 96 * MB, (CHAT, sequences)),
    engine("events of nothing", CHAT, stream_head(), b"data: \n\n", 20 * MB, 200, 502, send=streams),
    engine("comments for ever", CHAT, stream_head(), b":\n\n", 50 * MB, 200, 502, send=streams),
    engine("an event without end", CHAT, stream_head() + b"data: ", b"a", 50 * MB, 200, 502, send=streams),
    engine("a chunk for each byte", CHAT, CHUNKED, b"1\r\na\r\n", 6 * MB, 200, 502, send=streams),
    engine("an event for each chunk", CHAT, CHUNKED, b"2\r\n\n\n\r\n", 6 * MB, 200, 502, send=streams),
    engine("a count of ids", TOKENIZE, answer(b'{"tokens":[', length=100 * MB), b"[],", 101 * MB, 503),
    engine(
        "a count and then no end", TOKENIZE, answer(b'{"count":3,"tokens":[', length=100 * MB), b"1,", 101 * MB, 404
    ),
    engine(
        "a refusal to count", TOKENIZE, answer(b'{"error":', status="400 Bad", length=100 * MB), b"[", 101 * MB, 404
    ),
    engine("a count in bytes", TOKENIZE, CHUNKED, b"1\r\n \r\n", 6 * MB, 503),
    engine("interim answers to a count", TOKENIZE, b"", INTERIM, 6 * MB, 503),
    engine("health in bytes", "/health", CHUNKED, b"1\r\na\r\n", 6 * MB, 200, send=probed),
    engine("interim answers for health", "/health", b"", INTERIM, 6 * MB, 200, send=probed),
    engine("headers for health", "/health", b"HTTP/1.1 200 OK\r\n", b"a:\r\n", 6 * MB, 200, send=probed),
    engine("metrics in bytes", "/metrics", CHUNKED, b"1\r\n\n\r\n", 6 * MB, 200, send=probed),
    Attack("a cache of one block", probed_and_asked, (404,), script=("/metrics", lambda: [ONE_BLOCK])),
    metrics("one sample", b"", GAUGE + b" 1\n"),
    metrics("one line", GAUGE + b"{", b'a="",'),
    metrics("one label", GAUGE + b'{a="', b"\\a"),
    metrics("blanks", GAUGE, b" "),
    metrics("empty lines", b"", b"\n"),
    engine("metrics without end", "/metrics", stream_head("text/plain"), GAUGE + b" 1\n", 100 * MB, 200, send=probed),
    engine(
        "models without end",
        "/v1/models",
        answer(b'{"data":[', length=100 * MB),
        b'{"id":""},',
        101 * MB,
        200,
        send=probed,
    ),
]


@pytest.mark.parametrize("attack", CLIENTS + ENGINES, ids=lambda attack: attack.name)
def test_an_attack_costs_no_more_than_its_figures(target: Target, attack: Attack) -> None:
    if attack.script is not None:
        path, script = attack.script
        target.hostile.use(path, script)
    try:
        got, stretch, grown = target.cost(attack.send)
    finally:
        target.hostile.use(None, None)
    assert target.get("/livez").status == 200
    assert got.status in attack.statuses, got.raw[:300]
    if attack.script is None:
        assert len(got.body) < 1000 or got.status == 200, "an error must not repeat what the client wrote"
    assert stretch < MOST_STRETCH
    assert grown < attack.memory


def test_streams_of_large_requests_keep_none_of_their_bodies(target: Target) -> None:
    asked = b'{"model":"hostile","max_tokens":500,"stream":true,"messages":[],"metadata":{"p":"'
    large = filled(asked, b"p", b'"}}', 16 * MB)
    over = threading.Event()

    def begins() -> Iterator[bytes]:
        yield stream_head() + b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
        over.wait(60)

    target.hostile.use(CHAT, begins)
    before = target.forget_peaks()
    try:
        with contextlib.ExitStack() as streams:
            for _ in range(16):
                streams.enter_context(target.begun(CHAT, large))
            grown, most = target.in_use() - before, target.peak() - before
            lines = target.metrics()
    finally:
        over.set()
        target.hostile.use(None, None)
    print(f"16 streams of 16 MB each: {grown / MB:.0f} MB, at most {most / MB:.0f} MB")
    assert sum(float(line.split()[-1]) for line in lines if line.startswith("kvgate_in_flight{")) == 16
    assert grown < 96 * MB
    assert most < 256 * MB


def test_a_client_that_leaves_takes_the_counting_of_its_prompt_along(target: Target) -> None:
    message = b'{"role":"user","content":"a"}'
    huge = filled(b'{"model":"fake","messages":[', message + b",", message + b"]}", 16 * MB)
    large = filled(b'{"model":"fake","prompt":"', b"the ", b'"}', MB // 8)
    assert target.post(COMPLETIONS, large).status == 400
    began = time.monotonic()
    assert target.post(CHAT, huge).status == 400
    whole = time.monotonic() - began
    began = unhindered()
    early = time.monotonic() + whole / 4
    target.leave(CHAT, huge, once=lambda: time.monotonic() > early)
    assert target.post(COMPLETIONS, large).status == 400
    taken = unhindered() - began
    print(f"counted in {whole:.2f} s; left, and another one's answer after {taken:.2f} s")
    assert taken < whole * 0.7
