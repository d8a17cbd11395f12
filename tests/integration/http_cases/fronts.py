"""nginx and kvgate, each in front of a fake vLLM, and what became of the bytes that were sent to one of them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.stack import until
from tests.fakes.vllm import FakeVllm
from tests.fakes.vllm.connection import Connection, SeenRequest
from tests.integration.http_cases.cases import CASE, Case
from tests.integration.relaying import gateway
from tests.ports import free_port

_QUIET = 0.1
"""Seconds without a byte after which a server is taken to wait for more; many times that where two servers differ."""
_PAUSE = 0.02
"""Seconds between the pieces of a case."""
_CANARY = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
"""Tells whether a connection is kept, and whether it was understood where the case ends."""
_ALIVE = b"alive"
_NOTICED = frozenset(
    {
        "authorization", "connection", "content-length", "cookie", "expect", "http2-settings", "keep-alive", "te",
        "trailer", "transfer-encoding", "upgrade", "x-inner", "x-kvgate-flow", "x-late", "x-secret",
    }
)  # fmt: skip
"""Headers that may be about more than their own request, or that only come about by a misunderstanding."""
_HEAD = re.compile(rb"HTTP/1\.1 (\d)(\d\d)[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log; events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 32m; client_body_buffer_size 1m; large_client_header_buffers 4 64k;
  keepalive_requests 10000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 404 "nothing"; }}
    location = /livez {{ if ($request_method != GET) {{ return 405; }} return 200 "alive"; }}
    location = /v1/embeddings {{
      if ($request_method != POST) {{ return 405; }}
      proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server behind got it."""

    method: str
    target: str
    body: bytes
    headers: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Result:
    """What became of a case.

    Attributes:
        answers: whether each one serves the request.
        seen: by the server behind.
        end: whether the connection was kept for another request, closed, or what came last is still waited for.
    """

    answers: list[bool] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    end: str = ""


class Echo(FakeVllm):
    """A vLLM whose embeddings are taken down."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: dict[int, list[Seen]] = {}
        self.strays: list[SeenRequest] = []
        """Requests of no case."""

    def _on_request(self, connection: Connection, seen: SeenRequest) -> None:
        if "embeddings" not in seen.path and seen.header("x-case") is None:
            super()._on_request(connection, seen)
            return
        number = seen.header("x-case")
        if number is None:
            self.strays.append(seen)
        else:
            headers = tuple(sorted(pair for pair in seen.headers if pair[0] in _NOTICED))
            self.cases.setdefault(int(number), []).append(Seen(seen.method, seen.path, seen.body, headers))
        connection.respond(200, b"{}")


@dataclass(frozen=True, slots=True)
class Front:
    """A server and what is behind it."""

    port: int
    echo: Echo

    async def send(self, case: Case, number: int, patience: float = 1.0) -> Result:
        """Send a case on a connection of its own."""
        mark = b"%04d" % number
        result = Result()
        self.echo.cases[number] = []
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = bytearray()
        try:
            for piece in case.pieces:
                writer.write(piece.replace(CASE, mark))
                await _read(reader, received, _PAUSE * patience)
            if case.half_close:
                writer.write_eof()
            closed = await _read(reader, received, _QUIET * patience)
            if not closed and not case.half_close:
                writer.write(_CANARY)
                closed = await _read(reader, received, _QUIET * patience)
        except ConnectionError:
            closed = True
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        bodies = _answers(bytes(received), result)
        kept = not closed and not case.half_close and len(bodies) > 0 and _ALIVE in bodies[-1]
        if kept:
            result.answers.pop()
        result.end = "closed" if closed else "kept" if kept else "waiting"
        result.seen = self.echo.cases[number]
        return result


async def _read(reader: asyncio.StreamReader, received: bytearray, quiet: float) -> bool:
    """Read until nothing comes for a while; whether the other side has closed."""
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(quiet):
                data = await reader.read(2**16)
            if not data:
                return True
            received += data
    return False


def _answers(received: bytes, result: Result) -> list[bytes]:
    """The bodies of the final answers, their statuses noted in the result."""
    bodies = []
    while found := _HEAD.match(received):
        received = received[found.end() :]
        if found[1] == b"1":
            continue
        assert found[1] + found[2] != b"500", "a server failed"
        result.answers.append(found[1] == b"2")
        length = _LENGTH.search(found[0])
        if length is not None:
            bodies.append(received[: int(length[1])])
            received = received[int(length[1]) :]
        else:
            body, _, received = received.partition(b"\r\n0\r\n\r\n")
            bodies.append(body)
    return bodies


@contextlib.asynccontextmanager
async def nginx(binary: str, folder: Path) -> AsyncIterator[Front]:
    """nginx in front of a fake."""
    port = free_port()
    async with Echo() as echo:
        file = folder / "nginx.conf"
        file.write_text(_NGINX.format(folder=folder, port=port, backend=echo.port))
        process = await asyncio.create_subprocess_exec(binary, "-p", str(folder), "-c", str(file))
        try:
            await until(lambda: _listens(port), "nginx listens")
            yield Front(port, echo)
        finally:
            process.terminate()
            await process.wait()


@contextlib.asynccontextmanager
async def kvgate() -> AsyncIterator[Front]:
    """kvgate in front of a fake."""
    server = {"host": "127.0.0.1", "port": 0, "trusted_flow_header": "x-kvgate-flow"}
    async with Echo() as echo, gateway(echo, server=server) as running:
        yield Front(running.port, echo)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
