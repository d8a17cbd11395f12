"""Which leading parts of prompts an engine holds once for several requests, and which it probably still remembers.

What vLLM does (0.32, `v1/core`): a full block is found by a hash of its tokens, of all before them, and of LoRA and
cache salt. A request takes the blocks of its longest known prefix over, whether others hold them now or nobody does
any more; at most all but its last token, which is always computed. So a block counts once however many hold it.
Blocks become known when they are allocated, chunk by chunk of a prefill: requests that compute the same prompt at the
same time may hold parts of it twice, which shows in the gauge. Blocks that nobody holds are free room, and stay known
until that room is needed: the least recently freed go first, of one request its last blocks first.
"""

from bisect import bisect_left
from collections import deque
from math import inf
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


class _Run:
    """Successive parts with the same holders."""

    __slots__ = ("end", "holders", "ids")

    def __init__(self, end: int, holders: int, ids: int) -> None:
        self.end = end
        """Its last part is the one before this, counted from the beginning of a prompt."""
        self.holders = holders
        self.ids = ids
        """The sum of the holders' ids: once one is left, its id."""


class SharedPrefixes(Generic[H]):
    """The leading parts of prompts in flight on one endpoint, and which of them have several holders.

    Who holds a part holds all before it, so the holders of a prompt's parts only become fewer with depth. Parts with
    the same holders are one run: a change costs a step for each run of one prompt, not for each holder or part. Equal
    parts have to be preceded by equal parts.
    """

    def __init__(self, block_size: int) -> None:
        """Nobody holds anything.

        Args:
            block_size: tokens of a block: of what prompts have in common, whole blocks are shared.
        """
        self._block_size = block_size
        self._holders: dict[int, H] = {}
        self._runs: dict[tuple[int, int], _Run] = {}
        """By part."""
        self.tokens = 0
        """Tokens that two or more hold, counted once."""
        self.saved = 0
        """Tokens that sharing saves: for each part, its tokens times its holders beyond the first."""

    def held(self, prefix: Prefix) -> int:
        """Tokens of a prompt that somebody in flight holds, in whole blocks."""
        runs = self._runs
        if not prefix or prefix[0] not in runs:
            return 0
        return self._depth(prefix, bisect_left(prefix, 1, key=lambda part: part not in runs))

    def sole(self, prefix: Prefix) -> H | None:
        """Who alone holds some part of a prompt that the next to hold it would share; None where nobody does."""
        for part in prefix:
            run = self._runs.get(part)
            if run is None:
                return None
            if run.holders == 1:
                return self._holders[run.ids]
        return None

    def add(self, holder: H) -> None:
        """Enter a request; sets `shared` of it, and of the request it is the first to share with."""
        prefix = holder.prefix
        if not prefix:
            return
        runs, me = self._runs, id(holder)
        self._holders[me] = holder
        index = shared = 0
        while index < len(prefix) and (run := runs.get(prefix[index])) is not None:
            if run.end > len(prefix) or runs.get(prefix[run.end - 1]) is not run:
                run = self._split(run, prefix, index)
            known, shared = shared, self._depth(prefix, run.end)
            if run.holders == 1:
                self._holders[run.ids].shared = shared
                self.tokens += shared - known
            run.holders += 1
            run.ids += me
            index = run.end
        if index < len(prefix):
            runs.update(dict.fromkeys(prefix[index:], _Run(len(prefix), 1, me)))
        self.saved += shared
        holder.shared = shared

    def remove(self, holder: H) -> None:
        """Take out a request that was entered; corrects `shared` of the one it leaves alone with what both held."""
        prefix = holder.prefix
        if not prefix:
            return
        runs, me = self._runs, id(holder)
        del self._holders[me]
        index = kept = 0
        left: H | None = None
        while index < len(prefix):
            run = runs[prefix[index]]
            run.holders -= 1
            run.ids -= me
            if not run.holders:
                for part in prefix[index : run.end]:
                    del runs[part]
            elif run.holders == 1:
                left = self._holders[run.ids]
            else:
                kept = run.end
            index = run.end
        if left is not None:
            left.shared = self._depth(prefix, kept)
            self.tokens -= holder.shared - left.shared
        self.saved -= holder.shared
        holder.shared = 0

    def _split(self, run: _Run, prefix: Prefix, start: int) -> _Run:
        """Make a run of its own of those parts of a run that a prompt has, too; returns it."""
        runs = self._runs
        end = bisect_left(prefix, 1, start, key=lambda part: runs.get(part) is not run)
        common = _Run(end, run.holders, run.ids)
        runs.update(dict.fromkeys(prefix[start:end], common))
        return common

    def _depth(self, prefix: Prefix, parts: int) -> int:
        """Tokens of the whole blocks in the first so many parts."""
        if not parts:
            return 0
        tokens = prefix[parts - 1][0]
        return tokens - tokens % self._block_size


class _Sent:
    """What one prompt or answer put into the cache, as far as it is still there and nothing later has it, too."""

    __slots__ = ("end", "prefix", "tail")

    def __init__(self, prefix: Prefix, tail: int) -> None:
        self.prefix = prefix
        self.end = len(prefix)
        """Parts, from the first, that were not dropped."""
        self.tail = tail
        """Tokens beyond the parts."""


class RecentPrefixes:
    """What an endpoint's prefix cache probably still has, from what was sent to it: least recently sent goes first.

    Of one prompt the last parts go first, so who finds a part finds all before it.
    """

    def __init__(self, kv_tokens: int | None, most: int = 1 << 16) -> None:
        """Nothing is remembered.

        Args:
            kv_tokens: tokens of the endpoint's KV cache; None where unknown: then only `most` bounds what is kept.
            most: parts to remember, those that were sent several times counted as often: about 10 MB.
        """
        self._room = inf if kv_tokens is None else kv_tokens
        self._most = most
        self._parts: dict[tuple[int, int], _Sent] = {}
        """By part, what was sent with it last."""
        self._sent: deque[_Sent] = deque()
        self._tokens = 0
        self._kept = 0
        """Parts of all in `_sent`, and one for each of them."""

    def sent(self, prefix: Prefix, *, tokens: int) -> None:
        """Note what takes room in the cache now.

        Args:
            prefix: of a prompt that was sent; empty where not known, or for tokens that no other prompt begins with.
            tokens: all that it takes, its tail beyond the prefix included: the prompt's, or those of an answer.
        """
        if not prefix and not self._parts:
            return  # it only displaces what was sent before, and that is nothing anybody asks for
        entry = _Sent(prefix, tokens)
        self._tokens += tokens
        if prefix:
            entry.tail -= prefix[-1][0]
            self._tokens -= self.cached(prefix)
            self._parts.update(dict.fromkeys(prefix, entry))
        self._sent.append(entry)
        self._kept += 1 + len(prefix)
        if self._tokens > self._room or self._kept > self._most:
            self._make_room()

    def cached(self, prefix: Prefix) -> int:
        """Tokens of a prompt that need not be computed again, probably."""
        parts = self._parts
        if not prefix or prefix[0] not in parts:
            return 0
        return prefix[bisect_left(prefix, 1, key=lambda part: part not in parts) - 1][0]

    def _make_room(self) -> None:
        """Drop the ends of what was sent least recently."""
        parts, room = self._parts, self._room
        while self._tokens > room or self._kept > self._most:
            entry = self._sent[0]
            self._tokens -= entry.tail
            entry.tail = 0
            prefix, end, tokens = entry.prefix, entry.end, self._tokens
            while end and parts[prefix[end - 1]] is entry and (tokens > room or self._kept > self._most):
                del parts[prefix[end - 1]]
                tokens -= prefix[end - 1][0] - (prefix[end - 2][0] if end > 1 else 0)
                end -= 1
            self._tokens, entry.end = tokens, end
            if not end or parts[prefix[end - 1]] is not entry:  # the rest, if any, was sent again
                self._sent.popleft()
                self._kept -= 1 + len(prefix)
