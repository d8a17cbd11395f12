"""Which leading parts of prompts an engine holds once for several requests, and which it probably still remembers.

What vLLM does (0.32, `v1/core`): a full block is found by a hash of its tokens, of all before them, and of LoRA and
cache salt. A request takes the blocks of its longest known prefix over, whether others hold them now or nobody does
any more; at most all but its last token, which is always computed. So a block counts once however many hold it.
Blocks become known when they are allocated, chunk by chunk of a prefill: requests that compute the same prompt at the
same time may hold parts of it twice, which shows in the gauge. Blocks that nobody holds are free room, and stay known
until that room is needed: the least recently freed go first, of one request its last blocks first.
"""

from bisect import bisect_left
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from gateway.admission.events import Prefix


class Holder(Protocol):
    """A request in flight."""

    @property
    def prefix(self) -> Prefix:
        """Leading parts of its prompt. Must not change while it holds them."""

    shared: int
    """Tokens of its prompt that another holder holds too; kept by `SharedPrefixes`."""


H = TypeVar("H", bound=Holder)


class SharedPrefixes(Generic[H]):
    """The leading parts of prompts in flight on one endpoint, and which of them have several holders.

    Who holds a part holds all before it, so the holders of a prompt's parts only become fewer with depth: first come
    those that three or more hold, then those of two, then its own. A change walks down only the parts of one prompt.
    """

    def __init__(self, block_size: int) -> None:
        """Nobody holds anything.

        Args:
            block_size: tokens of a block: of what prompts have in common, whole blocks are shared.
        """
        self._block_size = block_size
        self._holders: dict[int, H] = {}
        self._one: dict[tuple[int, int], H] = {}
        """Parts of one holder."""
        self._many: dict[tuple[int, int], list[int]] = {}
        """Parts of several: how many, and the sum of their ids. Of the last one left, that sum is the id."""
        self.tokens = 0
        """Tokens that two or more hold, counted once."""
        self.saved = 0
        """Tokens that sharing saves: for each part, its tokens times its holders beyond the first."""

    def held(self, prefix: Prefix) -> int:
        """Tokens of a prompt that somebody in flight holds, in whole blocks."""
        one, many = self._one, self._many
        if not prefix or (prefix[0] not in one and prefix[0] not in many):
            return 0
        return self._depth(prefix, bisect_left(prefix, 1, key=lambda part: part not in one and part not in many))

    def add(self, holder: H) -> None:
        """Enter a request; sets `shared` of it, and of the request it is the first to share with."""
        prefix = holder.prefix
        if not prefix:
            return
        one, many, me = self._one, self._many, id(holder)
        self._holders[me] = holder
        index = 0
        for part in prefix:
            holders = many.get(part)
            if holders is None:
                break
            holders[0] += 1
            holders[1] += me
            index += 1
        shared = self._depth(prefix, index)
        owner = one.get(prefix[index]) if index < len(prefix) else None
        if owner is not None:
            both = me + id(owner)
            known = shared
            for part in prefix[index:]:
                if one.pop(part, None) is None:
                    break
                many[part] = [2, both]
                index += 1
            shared = owner.shared = self._depth(prefix, index)
            self.tokens += shared - known
        one.update(dict.fromkeys(prefix[index:], holder))
        self.saved += shared
        holder.shared = shared

    def remove(self, holder: H) -> None:
        """Take out a request that was entered; corrects `shared` of the one it leaves alone with what both held."""
        prefix = holder.prefix
        if not prefix:
            return
        one, many, me = self._one, self._many, id(holder)
        del self._holders[me]
        index = 0
        for part in prefix:
            holders = many.get(part)
            if holders is None:
                break
            if holders[0] == 2:  # noqa: PLR2004  # it and one other
                other = self._holders[holders[1] - me]
                other.shared = self._depth(prefix, index)
                self.tokens -= holder.shared - other.shared
                for both in prefix[index:]:
                    if many.pop(both, None) is None:
                        break
                    one[both] = other
                    index += 1
                break
            holders[0] -= 1
            holders[1] -= me
            index += 1
        for part in prefix[index:]:
            del one[part]
        self.saved -= holder.shared
        holder.shared = 0

    def _depth(self, prefix: Prefix, parts: int) -> int:
        """Tokens of the whole blocks in the first so many parts."""
        if not parts:
            return 0
        tokens = prefix[parts - 1][0]
        return tokens - tokens % self._block_size


class RecentPrefixes:
    """What an endpoint's prefix cache probably still has, from what was sent to it: least recently sent goes first.

    Of one prompt the last parts go first, so who finds a part finds all before it.
    """

    def __init__(self, kv_tokens: int | None, most: int = 1 << 16) -> None:
        """Nothing is remembered.

        Args:
            kv_tokens: tokens of the endpoint's KV cache; None where unknown: then only `most` bounds what is kept.
            most: entries to remember.
        """
        self._room = kv_tokens
        self._most = most
        self._tokens = 0
        self._parts: OrderedDict[tuple[int, int], int] = OrderedDict()
        """The least recent first, each with its tokens beyond the part before it."""
        self._unnamed = 0

    def sent(self, prefix: Prefix, *, tokens: int) -> None:
        """Note what takes room in the cache now.

        Args:
            prefix: of a prompt that was sent; empty where not known, or for tokens that no other prompt begins with.
            tokens: all that it takes, its tail beyond the prefix included: the prompt's, or those of an answer.
        """
        parts = self._parts
        tail = tokens - (prefix[-1][0] if prefix else 0)
        if tail > 0:
            self._unnamed += 1
            parts[tail, -self._unnamed] = tail  # a hash is never negative
            self._tokens += tail
        for index in range(len(prefix) - 1, -1, -1):
            part = prefix[index]
            if part in parts:
                parts.move_to_end(part)
            else:
                own = part[0] - (prefix[index - 1][0] if index else 0)
                parts[part] = own
                self._tokens += own
        room = self._room
        while len(parts) > self._most or (room is not None and self._tokens > room):
            _, own = parts.popitem(last=False)
            self._tokens -= own

    def cached(self, prefix: Prefix) -> int:
        """Tokens of a prompt that need not be computed again, probably."""
        parts = self._parts
        if not prefix or prefix[0] not in parts:
            return 0
        return prefix[bisect_left(prefix, 1, key=lambda part: part not in parts) - 1][0]

    def forget(self) -> None:
        """The engine was restarted, or dropped its cache."""
        self._parts.clear()
        self._tokens = 0
