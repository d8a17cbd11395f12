"""Prefixes that requests in flight share on one engine, and prefixes that its cache probably still has.

vLLM (0.32, `v1/core`) finds a full block by a hash of its tokens, all tokens before them, LoRA and cache salt. A
request reuses the blocks of its longest known prefix, held or free, but never for its last token: that one is always
computed. So a block counts once, however many requests hold it. A block becomes known when it is allocated, chunk by
chunk of a prefill. Requests that compute the same prompt at the same time may hold parts of it twice; the gauge shows
that. A block that no request holds is free room, and stays known until that room is needed: least recently freed
first, and of one request the last blocks first.
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
    """Tokens of its prompt that another holder also holds; set by `SharedPrefixes`."""


H = TypeVar("H", bound=Holder)


class _Run:
    """Successive parts with the same holders."""

    __slots__ = ("end", "holders", "ids")

    def __init__(self, end: int, holders: int, ids: int) -> None:
        self.end = end
        """Index after its last part, counted from the beginning of a prompt."""
        self.holders = holders
        self.ids = ids
        """Sum of the holders' ids: when one holder is left, its id. So that one is found without a list."""


class SharedPrefixes(Generic[H]):
    """The leading parts of prompts in flight on one endpoint, and their holders.

    A request that holds a part holds all parts before it, so deeper parts never have more holders. Parts with the same
    holders form one run: a change costs one step per run of the prompt, not per holder or part. Equal parts must be
    preceded by equal parts.
    """

    def __init__(self, block_size: int) -> None:
        """Begin with no holders.

        Args:
            block_size: Tokens of a block. Prompts share whole blocks only.
        """
        self._block_size = block_size
        self._holders: dict[int, H] = {}
        self._runs: dict[tuple[int, int], _Run] = {}
        """By part."""
        self.tokens = 0
        """Tokens with two or more holders, counted once."""
        self.saved_tokens = 0
        """Tokens saved by sharing: for each part, its tokens times its holders beyond the first."""

    def held(self, prefix: Prefix) -> int:
        """Tokens of a prompt that a request in flight holds, in whole blocks."""
        runs = self._runs
        if not prefix or prefix[0] not in runs:
            return 0
        return self._depth(prefix, bisect_left(prefix, 1, key=lambda part: part not in runs))

    def sole(self, prefix: Prefix) -> H | None:
        """The only holder of some part of a prompt; None if no part has exactly one holder."""
        for part in prefix:
            run = self._runs.get(part)
            if run is None:
                return None
            if run.holders == 1:
                return self._holders[run.ids]
        return None

    def add(self, holder: H) -> None:
        """Enter a request. Sets its `shared`, and that of a former only holder, which now shares with it."""
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
        self.saved_tokens += shared
        holder.shared = shared

    def remove(self, holder: H) -> None:
        """Take out a request. Corrects `shared` of one that now holds alone what it shared with this one."""
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
        self.saved_tokens -= holder.shared
        holder.shared = 0

    def _split(self, run: _Run, prefix: Prefix, start: int) -> _Run:
        """Split off and return the parts of a run that a prompt also has."""
        runs = self._runs
        end = bisect_left(prefix, 1, start, key=lambda part: runs.get(part) is not run)
        common = _Run(end, run.holders, run.ids)
        runs.update(dict.fromkeys(prefix[start:end], common))
        return common

    def _depth(self, prefix: Prefix, parts: int) -> int:
        """Tokens of the whole blocks in this many leading parts."""
        if not parts:
            return 0
        tokens = prefix[parts - 1][0]
        return tokens - tokens % self._block_size


class _Sent:
    """What is left in the cache of one prompt or answer. Parts that were sent again belong to the later entry."""

    __slots__ = ("end", "prefix", "tail")

    def __init__(self, prefix: Prefix, tail: int) -> None:
        self.prefix = prefix
        self.end = len(prefix)
        """Number of leading parts that are not dropped yet."""
        self.tail = tail
        """Tokens beyond the parts."""


class RecentPrefixes:
    """The probable content of an endpoint's prefix cache, from the prompts sent to it. Least recently sent drops first.

    The last parts of a prompt drop first, so a part that is found has all parts before it.
    """

    def __init__(self, kv_tokens: int | None, most: int = 1 << 16) -> None:
        """Begin with an empty cache.

        Args:
            kv_tokens: Tokens of the endpoint's KV cache; None if unknown: then only `most` bounds the memory.
            most: Most parts to remember, counted each time they are sent: about 10 MB.
        """
        self._room = inf if kv_tokens is None else kv_tokens
        self._most = most
        self._parts: dict[tuple[int, int], _Sent] = {}
        """The last entry that contained each part."""
        self._sent: deque[_Sent] = deque()
        self._tokens = 0
        self._kept = 0
        """Parts of all entries in `_sent`, plus one per entry."""

    def sent(self, prefix: Prefix, *, tokens: int) -> None:
        """Note a prompt or an answer that takes room in the cache now.

        Args:
            prefix: Leading parts of a prompt; empty if unknown, or for tokens that no other prompt begins with.
            tokens: All its tokens, including the tail beyond the prefix.
        """
        if not prefix and not self._parts:
            return  # it could only displace earlier prompts, and there are none
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
        """Tokens of a prompt that are probably cached."""
        parts = self._parts
        if not prefix or prefix[0] not in parts:
            return 0
        return prefix[bisect_left(prefix, 1, key=lambda part: part not in parts) - 1][0]

    def _make_room(self) -> None:
        """Drop the last parts of the least recently sent entries."""
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
            if not end or parts[prefix[end - 1]] is not entry:  # any rest was sent again
                self._sent.popleft()
                self._kept -= 1 + len(prefix)
