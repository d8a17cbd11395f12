"""The unix socket between the owner of the decisions and the fronts, which this process binds and keeps."""

import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from gateway.server.server import PortTakenError
from gateway.tier.key_file import prefix_key
from gateway.tier.seal import SharedKey

BACKLOG = 128


def expect_free(advertised: str) -> None:
    """Find out at the start that nobody could come to the HOST:PORT that is advertised: its owner listens there later.

    Raises:
        PortTakenError: the port is not free.
    """
    port = int(advertised.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        ).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)  # Python says it at length
        raise PortTakenError(f"tier.advertise: cannot listen on port {port}: {why}", port, "--tier-advertise") from None


class OwnerSocket:
    """Bound once, in a folder that only this user can open: connections wait in it while one owner follows another.

    Args:
        fronts: how many there are to be, as long as this process runs.
        tier: key of the tier, where there is one.

    Attributes:
        path: where fronts connect.
        listening: what the owner accepts from.
        key: of the hashes of bodies and prefixes, the same for all fronts.
    """

    def __init__(self, fronts: int, tier: SharedKey | None = None) -> None:
        self.fronts = fronts
        self._folder = Path(tempfile.mkdtemp(prefix="kvgate-"))
        self.path = self._folder / "owner"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.path))
        self.listening.listen(BACKLOG)
        self.key = secrets.token_bytes(32) if tier is None else prefix_key(tier)

    def close(self) -> None:
        """Close and remove it."""
        self.listening.close()
        shutil.rmtree(self._folder, ignore_errors=True)
