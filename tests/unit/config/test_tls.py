import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from gateway.config.endpoint import TlsSettings
from gateway.config.tls import ssl_context

FILES = Path(__file__).parent / "certificates"  # of localhost, by a CA of their own, good for a hundred years
CA, CERTIFICATE, KEY = FILES / "ca.pem", FILES / "localhost.pem", FILES / "localhost.key"


async def ask(server_context, tls):
    """What a client with these settings gets from a TLS server on localhost."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx.AsyncClient(verify=ssl_context(tls)) as client:
        return (await client.get(f"https://127.0.0.1:{port}/")).status_code


@pytest.fixture
def server_context():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


async def test_a_certificate_of_the_configured_ca_is_trusted(server_context):
    assert await ask(server_context, TlsSettings(ca_file=CA)) == 200


async def test_a_certificate_of_nobody_known_is_not(server_context):
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        await ask(server_context, TlsSettings())


async def test_verification_can_be_turned_off(server_context):
    assert await ask(server_context, TlsSettings(verify=False)) == 200


async def test_a_client_certificate_is_shown(server_context):
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(CA)
    assert await ask(server_context, TlsSettings(ca_file=CA, cert_file=CERTIFICATE, key_file=KEY)) == 200


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ({"ca_file": FILES / "none.pem"}, "tls.ca_file"),
        ({"ca_file": KEY}, "tls.ca_file"),
        ({"cert_file": FILES / "none.pem"}, "tls.cert_file"),
        ({"cert_file": CERTIFICATE, "key_file": FILES / "none.key"}, "tls.key_file"),
        ({"cert_file": CERTIFICATE, "key_file": CA}, "tls.key_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(files, key):
    with pytest.raises(ValueError, match=key):
        ssl_context(TlsSettings(**files))
