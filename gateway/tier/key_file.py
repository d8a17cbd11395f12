"""The file with the key of a tier, and what is derived from it."""

import os
import stat
from pathlib import Path

from gateway.config.errors import ConfigurationError
from gateway.config.tier import TierSettings
from gateway.tier.seal import SHORTEST_KEY, SharedKey

LONGEST = 4096
"""Most bytes of the file: what is longer is another file."""
_OTHERS = stat.S_IRWXO | stat.S_IWGRP
"""A group may read it: so Kubernetes hands secrets to a pod that is not root."""


def tier_key(settings: TierSettings) -> SharedKey | None:
    """The key that the gateways of a tier share; None where this gateway is alone.

    Raises:
        ConfigurationError: as `read_key`.
    """
    return None if settings.key_file is None else read_key(settings.key_file)


def prefix_key(key: SharedKey) -> bytes:
    """The key of prefix hashes and of bodies' fingerprints: the same on all machines, and after a restart."""
    return key.derived("prefix")


def mark(key: SharedKey) -> str:
    """What tells two keys apart, and may be read by anyone."""
    return key.derived("mark")[:4].hex()


def read_key(file: Path) -> SharedKey:
    """The key that a file holds. A line's end after it is no part of it.

    Raises:
        ConfigurationError: it cannot be read, others can read it, or it is no key.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"{file}: expected a file with a key")
            content = opened.read(LONGEST + 1)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot read the key: {error.strerror}") from None
    if status.st_mode & _OTHERS:
        raise ConfigurationError(
            f"{file}: others may read or change this key (mode {stat.S_IMODE(status.st_mode):04o}):"
            f" `chmod 600 {file}`, or `defaultMode: 0440` for a Kubernetes secret"
        )
    if len(content) > LONGEST:
        raise ConfigurationError(f"{file}: expected a key of at most {LONGEST} bytes")
    if len(content) < SHORTEST_KEY:
        raise ConfigurationError(
            f"{file}: expected a key of at least {SHORTEST_KEY} bytes, this has {len(content)}:"
            f" `openssl rand -hex 32` makes one, for all members"
        )
    return SharedKey(content.rstrip(b"\r\n"))
