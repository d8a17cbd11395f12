"""An HTTP client of one server, by its URL or its unix socket."""

import ssl

import httpx

UNIX = "unix:"
"""Before the path of a unix socket."""


def asking(
    base: str, *, timeout: float, headers: dict[str, str] | None = None, redirects: bool = False
) -> httpx.Client:
    """A client for paths of this server: `client.get("/health")`.

    It uses no proxy, which would see a key, and whose answers would look like the server's. CAs are the system's, or
    those of SSL_CERT_FILE.
    """
    transport = httpx.HTTPTransport(uds=base.removeprefix(UNIX)) if base.startswith(UNIX) else None
    return httpx.Client(
        base_url=base if transport is None else "http://localhost",
        transport=transport,
        headers=headers,
        timeout=timeout,
        follow_redirects=redirects,
        trust_env=False,
        verify=ssl.create_default_context() if base.startswith("https:") else True,
    )
