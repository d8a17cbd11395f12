"""Hashes the leading parts of a prompt, so that prompts with a common beginning are known by it.

Parts end where every prompt's do: at each `UNIT` up to `STEPS` of them, then with a stride that doubles as the length
does. So two prompts are found to agree up to at most 1/`STEPS` less than they do, and 100,000 tokens have 122 parts.

The hash is keyed. A recording of events holds these hashes, and a hash that anyone could compute would tell whoever
has the file which short or well-known prompts were sent. Hence a key of this process alone, which is never written
down: only this gateway has to recognise a prefix, a replay compares what was recorded, and a gateway that was
restarted remembers nothing that it could compare.
"""

import secrets
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from gateway.admission.events import Prefix

UNIT = 64
"""Tokens: a multiple of the usual block sizes, so that the shared beginning of short prompts is not lost."""
STEPS = 16
"""Parts of each octave of lengths."""
_LONGEST = 1 << 24
"""Tokens; no prompt is that long."""


def new_key() -> bytes:
    """A key for `prefix_of`, for as long as this process lives."""
    return secrets.token_bytes(32)


def prefix_of(ids: Sequence[int], key: bytes, seed: str) -> Prefix:
    """The leading parts of a prompt, shorter than all of it: an engine computes the last token anew in any case.

    Args:
        ids: its tokens. Where one is no token id the prompt has no parts: the engine will refuse it.
        key: of all prompts that are to be compared.
        seed: whatever else decides what the engine's KV cache holds for these tokens: LoRA, cache salt.
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
