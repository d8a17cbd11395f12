"""PURE. The proof that two members have the tier's key, and the seal on each message between them.

    caller -> called    nonce, tag of it
    called -> caller    nonce, tag of both nonces
    caller -> called    record 0: its claim
    called -> caller    record 0: its claim

So a caller without the key gets no answer. Then both send records: a length (2 bytes, big-endian), so many bytes, and a
tag of the record's number and these bytes. Each connection has other keys, in each direction another. A record that
was recorded, reflected, left out, put elsewhere or altered has a wrong tag, and ends the connection. Nothing is
encrypted: that is for a tunnel beneath.
"""

import hmac
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

import msgspec

NONCE = 32
"""Bytes."""
SHORTEST_KEY = 32
"""Bytes: a key that can be guessed can be found from one recorded connection."""
TAG = 16
"""Bytes of a tag."""
LONGEST_RECORD = 2**16 - 1
"""Most bytes that a record carries. No more than one record is kept before its tag is checked."""
LONGEST_CLAIM = 1024
"""Most bytes of a claim."""
_PROOF = NONCE + TAG
_LENGTH = 2


class SharedKey:
    """The key that all members of a tier have, and that nobody else has.

    Args:
        secret: at least `SHORTEST_KEY` bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._root = blake2b(secret, digest_size=32, person=b"kvgate tier").digest()

    def derived(self, purpose: str) -> bytes:
        """A key of 32 bytes for one purpose. It tells nothing of those for other purposes."""
        return blake2b(purpose.encode(), digest_size=32, key=self._root).digest()

    def digest(self, data: bytes) -> bytes:
        """Equal for equal data. Without the key nobody can test guesses of the data against it."""
        return blake2b(data, digest_size=16, key=self.derived("digests")).digest()


class Role(Enum):
    """What a member is to the one that it talks to."""

    FRONT = "front"
    OWNER = "owner"


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """What a member says of itself. Fields that a later version adds at the end are ignored.

    Attributes:
        role: the caller is a front, the called one an owner.
        member: its id.
        versions: of the messages: the lowest and the highest that it speaks.
        settings: `SharedKey.digest` of its settings.
        templates: `SharedKey.digest` of its chat templates.
    """

    role: Role
    member: str
    versions: tuple[int, int]
    settings: bytes = b""
    templates: bytes = b""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side, proven to be a member.

    Attributes:
        claim: what it says of itself.
        version: of the messages: the highest that both sides speak.
        differs: what is not the same on both sides, to be shown. The owner's counts.
    """

    claim: Claim
    version: int
    differs: tuple[str, ...]


class SealError(Exception):
    """The other side is no member of this tier, or somebody between has changed what it said."""


class DisagreementError(Exception):
    """A member of this tier, but the two cannot talk."""


def agreed(ours: Claim, theirs: Claim) -> Peer:
    """The other side, as this one may talk to it.

    Raises:
        DisagreementError: it cannot.
    """
    if theirs.role is ours.role:
        raise DisagreementError(f"member {theirs.member} is {_WITH_ARTICLE[theirs.role]}, as this one is")
    (low, high), (lowest, highest) = ours.versions, theirs.versions
    version = min(high, highest)
    if version < max(low, lowest):
        raise DisagreementError(
            f"member {theirs.member} speaks versions {lowest} to {highest} of the tier's messages,"
            f" this one {low} to {high}: gateways may be one release apart"
        )
    named = {"settings": ours.settings != theirs.settings, "chat templates": ours.templates != theirs.templates}
    return Peer(theirs, version, tuple(name for name, differs in named.items() if differs))


_WITH_ARTICLE = {Role.FRONT: "a front", Role.OWNER: "an owner"}
_read_claim = msgspec.msgpack.Decoder(Claim).decode


class Session:
    """One side of a connection. First send `opening`, then feed it what comes, and send what it answers.

    Args:
        key: of the tier.
        claim: what this side says of itself.
        nonce: `NONCE` random bytes that were never used before.
        calls: whether this side began the connection.
    """

    def __init__(self, key: SharedKey, claim: Claim, nonce: bytes, *, calls: bool) -> None:
        self.theirs: Claim | None = None
        """What the other side says of itself; None until it has proved that it has the key."""
        self._key = key
        self._claim = claim
        self._nonce = nonce
        self._calls = calls
        self._rest = b""
        self._ours: _Tags
        self._others: _Tags | None = None

    @property
    def opening(self) -> bytes:
        """What this side says unasked: nothing if it was called."""
        return self._nonce + self._proof(self._nonce) if self._calls else b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take what came; return what to answer, and what the other side said.

        Raises:
            SealError: end the connection, without a word.
        """
        data = self._rest + data if self._rest else data
        answer = b""
        if self._others is None:
            if len(data) > _PROOF and not self._calls:  # a caller waits for the answer to its proof
                raise SealError("it says more than it was asked")
            if len(data) < _PROOF:
                self._rest = data
                return b"", b""
            answer = self._prove(data[:_PROOF])
            data = data[_PROOF:]
        if self.theirs is None:
            if len(data) >= _LENGTH and int.from_bytes(data[:_LENGTH]) > LONGEST_CLAIM:
                raise SealError("its claim is too long")
            claims, data = self._opened(data, most=1)
            if claims:
                self._take_claim(claims[0])
                answer = answer if self._calls else self._sealed_claim()
        said: list[bytes] = []
        if self.theirs is not None:
            said, data = self._opened(data)
        self._rest = data
        return answer, said[0] if len(said) == 1 else b"".join(said)

    def seal(self, data: bytes) -> bytes:
        """The records that carry this, once the other side is known."""
        parts = []
        for at in range(0, len(data), LONGEST_RECORD):
            part = data[at : at + LONGEST_RECORD]
            parts += [len(part).to_bytes(_LENGTH), part, self._ours.next(part)]
        return b"".join(parts)

    def _prove(self, proof: bytes) -> bytes:
        """Check the other side's proof; return this side's, or, if it has given one, its claim."""
        nonce, tag = proof[:NONCE], proof[NONCE:]
        caller, called = (self._nonce, nonce) if self._calls else (nonce, self._nonce)
        both = caller + called
        if not hmac.compare_digest(tag, self._proof(both if self._calls else caller)):
            raise SealError("it has not the key of this tier")
        from_caller = _Tags(blake2b(both, digest_size=32, key=self._key.derived("from the caller")).digest())
        from_called = _Tags(blake2b(both, digest_size=32, key=self._key.derived("from the called")).digest())
        self._ours, self._others = (from_caller, from_called) if self._calls else (from_called, from_caller)
        return self._sealed_claim() if self._calls else self._nonce + self._proof(both)

    def _proof(self, nonces: bytes) -> bytes:
        return blake2b(nonces, digest_size=TAG, key=self._key.derived("proofs")).digest()

    def _sealed_claim(self) -> bytes:
        return self.seal(msgspec.msgpack.encode(self._claim))

    def _take_claim(self, data: bytes) -> None:
        try:
            self.theirs = _read_claim(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SealError(f"its claim cannot be read: {error}") from None

    def _opened(self, data: bytes, most: int | None = None) -> tuple[list[bytes], bytes]:
        """What complete records carry, and what is left."""
        assert self._others is not None  # noqa: S101  # the proof comes first
        parts: list[bytes] = []
        at = 0
        while len(data) - at >= _LENGTH and len(parts) != most:
            start = at + _LENGTH
            end = start + int.from_bytes(data[at:start])
            if len(data) < end + TAG:
                break
            part = data[start:end]
            if not hmac.compare_digest(data[end : end + TAG], self._others.next(part)):
                raise SealError("what it said was changed on the way")
            parts.append(part)
            at = end + TAG
        return parts, data[at:]


class _Tags:
    """The tags of one direction's records, in their order."""

    __slots__ = ("_keyed", "_number")

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(digest_size=TAG, key=key)
        self._number = 0

    def next(self, part: bytes) -> bytes:
        hashed = self._keyed.copy()
        hashed.update(self._number.to_bytes(8))
        hashed.update(part)
        self._number += 1
        return hashed.digest()
