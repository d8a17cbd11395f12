"""An endpoint that writes what a script says, and requests to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.config.settings import UpstreamSettings
from gateway.upstream.http_upstream import HttpUpstream

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: b\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Raw HTTP by script: each connection is handed to the next script, the last one serves all further ones."""

    def __init__(self) -> None:
        self.scripts: list[Serve] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length: "):
                await reader.readexactly(int(line.removeprefix(b"content-length: ")))
        return head

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await self.head(reader)
            except asyncio.IncompleteReadError:
                return
            writer.write(WHOLE)

    async def answer_and_leave_at_the_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.head(reader)
        writer.write(WHOLE)
        await self.head(reader)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        try:
            await script(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def upstream(keepalive: float = 60.0) -> AsyncIterator[HttpUpstream]:
    client = HttpUpstream(lambda: UpstreamSettings(keepalive=keepalive))
    yield client
    await client.close()
    await asyncio.sleep(0)


async def fetch(client: HttpUpstream, url: str, body: bytes = b"{}") -> bytes:
    answer = await client.send(url, "POST", "/v1/x?y=1", [(b"x-request-id", b"r1")], body)
    pieces = []
    while piece := await answer.read_some():
        pieces.append(piece)
    answer.close()
    return b"".join(pieces)
