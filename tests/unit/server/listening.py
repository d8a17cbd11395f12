"""A listener in front of an application, and raw requests to it."""

import asyncio
import contextlib

from gateway.config.settings import ServerSettings
from gateway.server.server import Listener, bind
from tests.until import PATIENCE

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(app, **settings):
    listener = Listener(app, bind("127.0.0.1", 0), ServerSettings(**settings))
    listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def connected(listener):
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        async with asyncio.timeout(PATIENCE):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader):
    """The status line and the body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head.split(b"\r\n")[0], await reader.readexactly(length)
