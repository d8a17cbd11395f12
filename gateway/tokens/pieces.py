"""The memory of encoded pieces: of a conversation that comes back longer, only what is new is encoded.

The tokenizer first takes its added tokens, as `<|im_start|>`, out of a text. It encodes the text between two of them
separately. So a text is cut before such tokens: the ids of the whole are those of its pieces. `safe_cuts` says of
which tokens this is true.
"""

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes
from typing import TYPE_CHECKING

from gateway.tokens.interruption import whole

if TYPE_CHECKING:
    from tokenizers import AddedToken

PIECE = 512
"""Fewest characters of a piece, but for the last."""
MOST_TOKENS = 4 * 2**20
"""Most tokens remembered, in 4 bytes each: 16 MiB."""
MOST_CUTS = 32
"""Most tokens before which texts are cut: each is tried at each character that may begin one."""
ENTRY = 64
"""Tokens that take as much memory as a piece does besides its own: its key and its objects."""


def safe_cuts(added: "Iterable[AddedToken]", wanted: Iterable[str]) -> re.Pattern[str] | None:
    """The pattern of the tokens before which a text may be cut; None if there are none.

    A token is safe if it is found in the text as it came, whatever stands before it: it takes no blanks from there
    (`lstrip`), and no other added token can begin before it and reach into it.

    Args:
        added: all of a vocabulary. If any has `single_word`, nothing is safe: its neighbours decide whether it is
            found.
        wanted: those that are of use, as they stand in a text, those that help most first.
    """
    tokens = list(added)
    if any(token.single_word for token in tokens):
        return None
    contents = {token.content for token in tokens}
    inside = "\0".join(content[1:] for content in contents)
    ends = {content[start:] for content in contents for start in range(1, len(content))}
    greedy = tuple(token.content for token in tokens if token.lstrip)
    plain = {token.content for token in tokens if not token.normalized}
    safe = (
        content
        for content in dict.fromkeys(wanted)
        if content
        and content in plain
        and not content[0].isspace()  # an earlier token with rstrip may take its blanks
        and not any(other.startswith(content) for other in greedy)  # a token with lstrip would be found instead
        and content not in inside
        and not any(content[:end] in ends for end in range(1, len(content) + 1))
    )
    cuts = sorted(islice(safe, MOST_CUTS), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, cuts))) if cuts else None


class Pieces:
    """Encodes texts, and remembers the tokens of their pieces, the latest used. Threads may share it.

    Args:
        encode: the ids of each of several texts, without special tokens around them.
        cuts: before each match a text may be cut.
    """

    def __init__(self, encode: Callable[[list[str]], Iterable[Sequence[int]]], cuts: re.Pattern[str]) -> None:
        self._encode = encode
        self._cuts = cuts
        self._key = token_bytes(32)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self.tokens = 0
        """Tokens remembered, with `ENTRY` for each piece."""

    def ids(self, text: str) -> "array[int]":
        """The token ids of a text without lone surrogates."""
        pieces = list(self._cut(text))
        digests = [blake2b(piece.encode(), digest_size=16, key=self._key).digest() for piece in pieces]
        known = self._recall(digests)
        new = {digest: piece for digest, piece in zip(digests, pieces, strict=True) if digest not in known}
        if new:
            encoded = self._encode(list(new.values()))
            fresh = {digest: array("I", ids) for digest, ids in zip(new, encoded, strict=True)}
            self._remember(fresh)
            known |= fresh
        whole = array("I")
        for digest in digests:
            whole += known[digest]
        return whole

    def _cut(self, text: str) -> Iterator[str]:
        start = 0
        for match in self._cuts.finditer(text):
            if match.start() - start >= PIECE:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]

    def _recall(self, digests: Iterable[bytes]) -> dict[bytes, "array[int]"]:
        with self._lock:
            known = {digest: self._known[digest] for digest in digests if digest in self._known}
            for digest in known:
                self._known.move_to_end(digest)
            return known

    def _remember(self, fresh: Mapping[bytes, "array[int]"]) -> None:
        with whole(), self._lock:
            for digest, ids in fresh.items():
                if digest not in self._known:
                    self._known[digest] = ids
                    self.tokens += ENTRY + len(ids)
            while self.tokens > MOST_TOKENS:
                self.tokens -= ENTRY + len(self._known.popitem(last=False)[1])
