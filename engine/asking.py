"""An HTTP client of one server, by its URL or its unix socket."""

import ssl

import httpx

UNIX = "unix:"
"""Before the path of a unix socket."""
_ANY = "http://localhost"
"""The URL of a unix socket: a server must have some name."""


def asking(
    base: str, *, timeout: float, headers: dict[str, str] | None = None, redirects: bool = False
) -> httpx.Client:
    """A client for paths of this server: `client.get("/health")`.

    It uses no proxy, which would see a key, and whose answers would look like the server's. CAs are the system's, or
    those of SSL_CERT_FILE.
    """
    transport = httpx.HTTPTransport(uds=base.removeprefix(UNIX)) if base.startswith(UNIX) else None
    return httpx.Client(
        base_url=base if transport is None else _ANY,
        transport=transport,
        headers=headers,
        timeout=timeout,
        follow_redirects=redirects,
        trust_env=False,
        verify=_trusted(base),
    )


def asking_at_length(base: str, *, timeout: float, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """The same on an event loop, for answers that go on."""
    transport = httpx.AsyncHTTPTransport(uds=base.removeprefix(UNIX)) if base.startswith(UNIX) else None
    return httpx.AsyncClient(
        base_url=base if transport is None else _ANY,
        transport=transport,
        headers=headers,
        timeout=timeout,
        trust_env=False,
        verify=_trusted(base),
    )


def _trusted(base: str) -> ssl.SSLContext | bool:
    return ssl.create_default_context() if base.startswith("https:") else True
