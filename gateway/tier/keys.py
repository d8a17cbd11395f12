"""The keys of a tier, all from the one secret that its gateways share."""

from hashlib import blake2b

from gateway.config.settings import TierSettings
from gateway.config.sources import ConfigurationError, read_secret

_SHORTEST = 32
"""Characters: 128 bits in hexadecimal."""


def tier_secret(settings: TierSettings) -> bytes | None:
    """The secret that the gateways of a tier share; None where this gateway is alone.

    Raises:
        ConfigurationError: its file cannot be read, or holds too little.
    """
    secret = read_secret(None, settings.key_file)
    if secret is None:
        return None
    if len(secret) < _SHORTEST:
        raise ConfigurationError(
            f"{settings.key_file}: expected at least {_SHORTEST} characters, as `openssl rand -hex 32` writes"
        )
    return secret.encode()


def prefix_key(secret: bytes) -> bytes:
    """The key of prefix hashes and of bodies' fingerprints: the same on all machines, and after a restart."""
    return _derived(secret, b"prefix")


def mark(secret: bytes) -> str:
    """What tells two secrets apart, and may be read by anyone."""
    return _derived(secret, b"mark")[:4].hex()


def _derived(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes that tell nothing of the secret, nor of those derived for another purpose."""
    key = blake2b(secret, digest_size=32, person=b"kvgate tier").digest()
    return blake2b(purpose, digest_size=32, key=key).digest()
