"""The fingerprint by which a repeated request is recognised.

As with prefixes (`gateway.tokens.prefix`), the hash is keyed with random bytes of this gateway, so an event log that
holds it does not reveal the prompts.
"""

import asyncio
from hashlib import blake2b

INLINE = 64 * 1024
"""Largest body in bytes hashed on the event loop, in 0.1 ms; a larger one is hashed in a thread."""


async def fingerprint(flow: str, body: bytes, key: bytes) -> int:
    """A number that is the same for equal bodies of one flow and differs for all others; never 0."""
    if len(body) <= INLINE:
        return _hashed(flow, body, key)
    return await asyncio.to_thread(_hashed, flow, body, key)


def _hashed(flow: str, body: bytes, key: bytes) -> int:
    hashed = blake2b(flow.encode(errors="surrogatepass") + b"\0", digest_size=8, key=key)
    hashed.update(body)
    return int.from_bytes(hashed.digest()) or 1
