# ruff: noqa: INP001  # a script, not a package
"""The image's health check: exit code 0 while the gateway answers `/livez`, which looks at nothing but itself.

It must not ask for a healthy engine: a gateway that holds requests while its engine restarts is doing its work.
The standard library only, so that a check costs a few milliseconds of CPU. The port is the one the environment says;
in a container leave it at 8080 and publish another one outside. TLS and a unix socket are those of the environment, too
(`KVGATE_SERVER__TLS_CERT`, `KVGATE_SERVER__HOST`): name them there, not in a file.
"""

import http.client
import os
import socket
import sys

TIMEOUT = 2.0
"""Seconds, below the timeout the Dockerfile gives the whole check."""


def reach(port: int) -> http.client.HTTPConnection:
    """A connection to the gateway of this container."""
    host = os.environ.get("KVGATE_SERVER__HOST", "")
    if host.startswith("unix:"):
        connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(TIMEOUT)
        connection.sock.connect(host.removeprefix("unix:"))
        return connection
    if os.environ.get("KVGATE_SERVER__TLS_CERT"):
        import ssl  # noqa: PLC0415  # it takes longer to load than all else here

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # whatever its name is outside
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT, context=context)
    return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)


def main() -> None:
    """Ask once."""
    port = int(os.environ.get("KVGATE_SERVER__PORT", "8080"))
    try:
        connection = reach(port)
        connection.request("GET", "/livez")
        status = connection.getresponse().status
        connection.close()
    except OSError as error:
        sys.exit(f"nothing answers on port {port}: {error}")
    if status != http.client.OK:
        sys.exit(f"/livez on port {port} answered {status}")


if __name__ == "__main__":
    main()
