import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from gateway.config.endpoint import TlsSettings
from gateway.config.settings import ServerSettings
from gateway.config.tls import clients_context, expect_usable, ssl_context

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


def server(cert, key):
    return ServerSettings(tls_cert=FILES / cert, tls_key=FILES / key)


def test_without_a_certificate_clients_speak_plain_http():
    assert clients_context(ServerSettings()) is None
    expect_usable(ServerSettings())


@pytest.mark.parametrize(("cert", "key"), [("localhost.pem", "localhost.key"), ("other.pem", "other.key")])
def test_a_certificate_that_clients_can_accept_is_fine(cert, key):
    expect_usable(server(cert, key))
    assert clients_context(server(cert, key)).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("expired.pem", "localhost.key", r"^server.tls_cert: .*expired.pem expired at 2021-01-01 00:00 UTC: renew it$"),
        ("future.pem", "localhost.key", r"^server.tls_cert: .*future.pem is valid from 2120-01-01 00:00 UTC on"),
        ("localhost.pem", "other.key", r"^server.tls_key: .*other.key is not the key of the certificate in "),
        ("localhost.pem", "locked.key", r"^server.tls_key: the key in .*locked.key has a password"),
        ("localhost.pem", "ca.pem", r"^server.tls_key: expected a private key in PEM, .*ca.pem has none$"),
        ("localhost.key", "localhost.key", r"^server.tls_cert: expected a certificate in PEM, "),
        ("none.pem", "localhost.key", r"^server.tls_cert: .*none.pem cannot be read: No such file or directory$"),
        ("localhost.pem", "none.key", r"^server.tls_key: .*none.key cannot be read: No such file or directory$"),
    ],
)
def test_one_that_cannot_serve_is_explained(cert, key, said):
    with pytest.raises(ValueError, match=said):
        expect_usable(server(cert, key))


def test_an_expired_one_still_serves_a_gateway_that_is_replaced():
    assert clients_context(server("expired.pem", "localhost.key")) is not None
