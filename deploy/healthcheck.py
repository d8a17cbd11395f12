# ruff: noqa: INP001  # a script, not a package
"""The image's health check: exit code 0 while the gateway answers `/livez`, which looks at nothing but itself.

It must not ask for a healthy engine: a gateway that holds requests while its engine restarts is doing its work.
The standard library only, so that a check costs a few milliseconds of CPU. The port is the one the environment says;
in a container leave it at 8080 and publish another one outside.
"""

import http.client
import os
import sys

TIMEOUT = 2.0
"""Seconds, below the timeout the Dockerfile gives the whole check."""


def main() -> None:
    """Ask once."""
    port = int(os.environ.get("KVGATE_SERVER__PORT", "8080"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except OSError as error:
        sys.exit(f"nothing answers on port {port}: {error}")
    finally:
        connection.close()
    if status != http.client.OK:
        sys.exit(f"/livez on port {port} answered {status}")


if __name__ == "__main__":
    main()
