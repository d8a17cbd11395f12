import asyncio
import socket

import pytest

from gateway.config.settings import ServerSettings
from gateway.server.server import Listener, bind_unix
from tests.unit.server.listening import GET
from tests.unit.server.test_tls import on_both_loops
from tests.until import until


def listener(path, size, monkeypatch):
    monkeypatch.setattr("gateway.server.unix_protocol.STALLED", 0.3)

    async def answers(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})

    return Listener(answers, bind_unix(path, "600"), ServerSettings())


@pytest.mark.parametrize(
    "asks", [GET * 50, GET.replace(b"host", b"connection: close\r\nhost")], ids=["all", "the last"]
)
@on_both_loops
async def test_who_does_not_read_its_answers_loses_its_connection(tmp_path, monkeypatch, asks):
    # The kernel keeps less, and asyncio's own limits would not tell of the rest.
    listening = listener(tmp_path / "s", 2**18 + 2**15, monkeypatch)
    listening.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        client.sendall(asks)
        await until(lambda: listening.connections == 1)
        await until(lambda: listening.connections == 0)
    await listening.stop()


@on_both_loops
async def test_who_reads_slowly_gets_all_of_its_answer(tmp_path, monkeypatch):
    size = 2**20
    listening = listener(tmp_path / "s", size, monkeypatch)
    listening.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=1)
    writer.write(GET)
    received = b""
    while len(received) < size:
        received += await reader.readexactly(2**16)
        await asyncio.sleep(0.1)
    writer.close()
    await listening.stop()
