"""The function from tokens generated to the KV cache blocks that one request holds. The ledger keeps the result."""

from bisect import bisect_right
from collections import Counter
from itertools import accumulate

from gateway.admission.events import Demand

Paging = tuple[int, bool]
"""Tokens of a block on an endpoint, and whether sequences of one prompt share blocks."""


class Footprint:
    """Blocks that one request holds on an endpoint, as a function of the tokens generated.

    A sequence of p prompt tokens and g generated tokens holds ceil((p + g) / block) blocks. If the endpoint shares
    prefixes, the n sequences of a prompt hold its full blocks once. vLLM computes a prompt's last token again for
    each sequence, so a block that ends with that token is not shared: (p - 1) // block blocks are.
    """

    __slots__ = ("_block", "_boundaries", "_full", "_n", "_prompts", "_rests", "_shared", "_upto", "first")

    def __init__(self, demand: Demand, block_size: int, *, shares_prefix: bool) -> None:
        prompts = demand.prompts
        self._block = block_size
        self._n = demand.n
        self._prompts = len(prompts)
        self._shared = 0
        if shares_prefix and demand.n > 1:
            self._shared = (demand.n - 1) * sum((p - 1) // block_size for p in prompts)
        self._boundaries: tuple[int, ...] = ()
        """With many prompts: the values of s, see below, at which a block is added."""
        self._rests: tuple[int, ...] = ()
        self._upto: tuple[int, ...] = ()
        if len(prompts) == 1:
            self._full = prompts[0]
        else:
            # With q, s = divmod(g, block), the sum of ceil((p + g) / block) over many prompts is the prompts' full
            # blocks, plus q for each prompt, plus what their rests in the last block need with s tokens more: so it
            # takes only the rests that occur, and how many prompts have up to each. With blocks of 16 and prompts of 20
            # and 32 tokens: 1 + 2 full blocks, and rests of 4 and 0. These need 1 block at s = 0, 2 from s = 1, and 3
            # from s = 13, as 4 + 13 tokens take two. The boundaries are 1 and 13.
            self._full = sum(p // block_size for p in prompts)
            rests = Counter(p % block_size for p in prompts)
            self._rests = tuple(sorted(rests))
            self._upto = tuple(accumulate((rests[rest] for rest in self._rests), initial=0))
            self._boundaries = tuple(sorted((1 - rest) % block_size for rest in rests))
        self.first = self.blocks(1)
        """Blocks held with the first token."""

    def blocks(self, generated: int) -> int:
        """Blocks held when each sequence has generated this many tokens."""
        if self._rests:
            rows, more = divmod(generated, self._block)
            # One block for each rest, none where nothing is left over, a second one where it takes more than a block.
            over = self._prompts - self._upto[bisect_right(self._rests, self._block - more)]
            empty = self._upto[1] if not more and not self._rests[0] else 0
            ceilings = self._full + self._prompts * (rows + 1) - empty + over
        else:
            ceilings = -(-(self._full + generated) // self._block)
        return self._n * ceilings - self._shared

    def growth(self, generated: int) -> tuple[int, int]:
        """Blocks held with this many tokens per sequence, and the number of tokens at which it will hold more."""
        if self._rests:
            return self.blocks(generated), self._next_growth(generated)
        ceiling = -(-(self._full + generated) // self._block)
        return self._n * ceiling - self._shared, ceiling * self._block - self._full + 1

    def _next_growth(self, generated: int) -> int:
        rest = generated % self._block
        boundaries = self._boundaries
        index = bisect_right(boundaries, rest)
        if index < len(boundaries):
            return generated - rest + boundaries[index]
        return generated - rest + self._block + boundaries[0]
