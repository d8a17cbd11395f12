import asyncio
import socket

import pytest

from gateway.server.last_call import LAST_WORD, last_call, let_none_begin
from gateway.server.server import bind
from tests.unit.server.listening import GET
from tests.until import until


def listening():
    port = bind("127.0.0.1", 0)
    port.listen()
    return port, port.getsockname()


def test_the_last_word_is_an_answer_that_sends_its_client_elsewhere():
    head, _, body = LAST_WORD.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert {b"connection: close", b"retry-after: 1", b"content-length: %d" % len(body)} <= {*headers}
    assert b'"code":"draining"' in body


@pytest.mark.parametrize("early", [False, True])
async def test_who_waits_to_be_accepted_when_a_port_closes_is_answered_once_it_asks(early):
    port, address = listening()
    reader, writer = await asyncio.open_connection(*address)
    if early:
        writer.write(GET)
    closing = asyncio.create_task(last_call([port]))
    if not early:
        await until(lambda: port.fileno() == -1)
        assert reader._buffer == b"", "nginx takes no answer before it has asked"
        writer.write(GET)
    assert await reader.read() == LAST_WORD
    writer.close()
    await closing
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_a_client_that_stays_does_not_keep_the_port(monkeypatch):
    monkeypatch.setattr("gateway.server.last_call.LINGER", 0.1)
    port, address = listening()
    with socket.create_connection(address):
        await asyncio.wait_for(last_call([port]), 5)
    assert port.fileno() == -1


def test_before_a_port_closes_no_connection_begins_and_those_that_have_begun_are_there():
    port, address = listening()
    with port, socket.create_connection(address) as begun:
        let_none_begin(port)
        with socket.socket() as late:
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.connect(address)
        begun.sendall(GET)
        accepted, _ = port.accept()
        with accepted:
            assert accepted.recv(len(GET)) == GET
