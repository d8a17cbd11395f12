import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.upstream.endpoint import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.scripts = [server.answer]
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield server
    listening.close()
