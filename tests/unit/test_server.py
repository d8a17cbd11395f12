import asyncio
import socket

import httpx
import pytest

from gateway.config import ServerSettings
from gateway.server import Listener, PortTakenError


async def app(scope, receive, send):
    if scope["path"] == "/slow":
        await asyncio.sleep(60)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def listener(port=0, host="127.0.0.1", **settings):
    return Listener(app, host, port, ServerSettings(**settings))


async def test_a_started_listener_answers_at_once_and_a_stopped_one_refuses():
    listening = listener()
    listening.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.port}", trust_env=False) as client:
        answer = await client.get("/")
        assert answer.text == "ok"
        assert "server" not in answer.headers
        await listening.stop()
        with pytest.raises(httpx.TransportError):
            await client.get("/")


async def test_a_taken_port_is_known_before_anything_starts():
    first = listener()
    first.start()
    with pytest.raises(PortTakenError, match=f"127.0.0.1:{first.port}: Address already in use"):
        listener(first.port)
    await first.stop()


async def test_a_host_that_is_not_ours_is_said_to_be():
    with pytest.raises(PortTakenError, match=r"cannot listen on 203\.0\.113\.1:"):
        listener(host="203.0.113.1")


async def test_stopping_does_not_wait_for_ever():
    listening = listener()
    listening.start()
    with socket.create_connection(("127.0.0.1", listening.port)) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        await asyncio.wait_for(listening.stop(), 5)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6_is_an_address_like_any_other():
    try:
        listening = listener(host="::1")
    except PortTakenError:
        pytest.skip("no IPv6 here")
    listening.start()
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://[::1]:{listening.port}/")).text == "ok"
    await listening.stop()
