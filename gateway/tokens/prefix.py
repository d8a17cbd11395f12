"""The prefix hashes of a prompt, by which prompts with a common beginning are recognised.

Each hash covers a leading part. Parts end at the same lengths for every prompt: at each `UNIT` up to `STEPS` of them,
then with a stride that doubles whenever the length does. So the common prefix found for two prompts is at most
1/`STEPS` too short, and 100,000 tokens have 122 parts.

The hash is keyed. An event log holds these hashes, and with a hash that anyone can compute, a reader of the file could
find out which short or well-known prompts were sent. So the key belongs to this gateway alone and is never written
down; in a tier it is derived from the key that its gateways share. That is enough: only fronts of one owner have to
recognise a prefix, and a replay compares recorded hashes with each other.
"""

import secrets
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from gateway.admission.events import Prefix

UNIT = 64
"""Tokens; a multiple of the usual block sizes, small enough to find the common prefix of short prompts."""
STEPS = 16
"""Parts per doubling of the length."""
_LONGEST = 1 << 24
"""Tokens; no prompt is that long."""


def new_key() -> bytes:
    """A key for `prefix_of`, for as long as this gateway lives."""
    return secrets.token_bytes(32)


def prefix_of(ids: Sequence[int], key: bytes, seed: str) -> Prefix:
    """The proper leading parts of a prompt: an engine always computes the last token anew.

    Args:
        ids: its tokens. If one is not a token id the prompt has no parts: the engine will refuse it.
        key: the same for all prompts to compare.
        seed: all else that decides the KV cache of these tokens: LoRA, cache salt.
    """
    ends = _ENDS[: bisect_right(_ENDS, len(ids) - 1)]
    if not ends:
        return ()
    try:
        tokens = memoryview(array("I", ids[: ends[-1]]))
    except (TypeError, OverflowError):
        return ()
    hashed = blake2b(seed.encode(errors="surrogatepass") + b"\0", digest_size=8, key=key)
    digests = []
    start = 0
    for end in ends:
        hashed.update(tokens[start:end])
        digests.append(hashed.digest())
        start = end
    return tuple(zip(ends, array("Q", b"".join(digests)), strict=True))


def _ladder() -> Iterator[int]:
    end, stride = 0, UNIT
    while end < _LONGEST:
        for _ in range(STEPS):
            end += stride
            yield end
        stride = end // STEPS


_ENDS = tuple(_ladder())
