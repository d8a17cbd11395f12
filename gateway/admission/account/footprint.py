"""The KV cache blocks that one request holds, as a function of its tokens."""

from bisect import bisect_right

from gateway.admission.events import Demand

Paging = tuple[int, bool]
"""Tokens of a block on an endpoint, and whether sequences of one prompt share blocks."""


class Footprint:
    """Blocks that one request holds on an endpoint, as a function of the tokens generated.

    A sequence of p prompt tokens and g generated tokens holds ceil((p + g) / block) blocks. If the endpoint shares
    prefixes, the n sequences of a prompt hold its full blocks once. vLLM computes a prompt's last token again for
    each sequence, so a block that ends with that token is not shared: (p - 1) // block blocks are.
    """

    __slots__ = ("_block", "_boundaries", "_full", "_n", "_prompts", "_shared", "_tails", "first")

    def __init__(self, demand: Demand, block_size: int, *, shares_prefix: bool) -> None:
        prompts = demand.prompts
        self._block = block_size
        self._n = demand.n
        self._prompts = len(prompts)
        self._shared = 0
        if shares_prefix and demand.n > 1:
            self._shared = (demand.n - 1) * sum((p - 1) // block_size for p in prompts)
        self._boundaries: tuple[int, ...] = ()
        self._tails: tuple[int, ...] = ()
        if len(prompts) == 1:
            self._full = prompts[0]
        else:
            # With q, s = divmod(g, block), the sum of ceil((p + g) / block) over many prompts is the prompts' full
            # blocks, plus q for each prompt, plus a term that depends on s alone. This table holds that term.
            self._full = sum(p // block_size for p in prompts)
            remainders = [0] * (block_size + 1)
            for p in prompts:
                remainders[p % block_size] += 1
            self._boundaries = tuple(sorted({(1 - r) % block_size for r in range(block_size) if remainders[r]}))
            tails = []
            over = 0  # prompts whose remainder plus s needs a second block
            for s in range(block_size):
                over += remainders[block_size - s + 1] if s else 0
                tails.append(len(prompts) - (remainders[0] if s == 0 else 0) + over)
            self._tails = tuple(tails)
        self.first = self.blocks(1)
        """Blocks held with the first token."""

    def blocks(self, generated: int) -> int:
        """Blocks held when each sequence has generated this many tokens."""
        if self._tails:
            rows, rest = divmod(generated, self._block)
            ceilings = self._full + self._prompts * rows + self._tails[rest]
        else:
            ceilings = -(-(self._full + generated) // self._block)
        return self._n * ceilings - self._shared

    def growth(self, generated: int) -> tuple[int, int]:
        """Blocks held with this many tokens per sequence, and the number of tokens at which it will hold more."""
        if self._tails:
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
