"""What a request is known by when it comes back.

As with prefixes (`gateway.tokens.prefix`) the hash is keyed with bytes of this process alone: an event log that holds
it does not tell which prompts were sent.
"""

import asyncio
import secrets
from hashlib import blake2b

INLINE = 64 * 1024
"""Bytes that are hashed at once, in a tenth of a millisecond; more of them in a thread."""

_KEY = secrets.token_bytes(32)


async def fingerprint(flow: str, body: bytes) -> int:
    """A number that equal bodies of one flow have in common, and others do not; never 0."""
    if len(body) <= INLINE:
        return _hashed(flow, body)
    return await asyncio.to_thread(_hashed, flow, body)


def _hashed(flow: str, body: bytes) -> int:
    hashed = blake2b(flow.encode(errors="surrogatepass") + b"\0", digest_size=8, key=_KEY)
    hashed.update(body)
    return int.from_bytes(hashed.digest()) or 1
