"""vLLM's scheduler (V1), block pool and prefix cache, written out: one step at a time and without a clock.

Running sequences go first. One that finds no block for its next token sends the youngest back to the queue. Then, in a
step that preempted nobody, waiting sequences start in order, each once its whole prompt fits beside the watermark.
The fake server runs on it, and the simulation's engine is held to it.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Block:
    """One block of KV cache."""

    content: Hashable = None
    """Stands for all tokens up to its end, where they are cached."""
    references: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation: `prompt_tokens` in, `output_tokens` out."""

    prompt_tokens: int
    output_tokens: int
    owner: Any = None
    """Whom the server tells about each token."""
    index: int = 0
    """Which choice of the answer it is."""
    shared: tuple[tuple[Hashable, int], ...] = ()
    """Parts of its prompt that others have too, in order: a name of each, and where it ends."""
    generated: int = 0
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: list[Block] = field(default_factory=list)
    prefilling: bool = False
    preemptions: int = 0
    preempted: bool = False
    """It waits to run again."""
    gone: bool = False

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.generated

    def content(self, end: int) -> Hashable:
        """What stands for its tokens up to `end`."""
        if end < self.prompt_tokens:  # the last token is computed for each sequence anew
            for name, last in self.shared:
                if end <= last:
                    return "shared", name, end
        return "own", id(self), end


@dataclass(slots=True)
class Step:
    """What one step did."""

    emitted: list[Sequence] = field(default_factory=list)
    """Sequences that got one more token."""
    decoding: int = 0
    """Sequences that only needed one more token."""
    prefilled: int = 0
    """Tokens computed for the others."""
    context: int = 0
    """Tokens in the cache of all that run."""


class Scheduler:
    """Blocks of KV cache, a running list and a waiting queue."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        *,
        watermark: float = 0.0,
        prefix_caching: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.prefix_caching = prefix_caching
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        """Counted, as vLLM does, when the preempted sequence runs again."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.completed = 0
        """Sequences generated to their end."""
        self.completed_prompt = 0
        self.completed_output = 0
        self._usable = num_blocks - 1
        """The null block is never handed out."""
        self._spare = int(watermark * self._usable)
        self._free = deque(Block() for _ in range(self._usable))
        """In the order of their next use."""
        self._cache: dict[Hashable, Block] = {}

    @property
    def used_blocks(self) -> int:
        return self._usable - len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that is held, 0 to 1."""
        return self.used_blocks / self._usable

    @property
    def unfinished(self) -> int:
        return len(self.running) + len(self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; does nothing to one that is finished or was never added."""
        if sequence.gone:
            return
        sequence.gone = True
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def step(self) -> Step:
        """Compute once: every running sequence that got its blocks moves on."""
        before = len(self.waiting)
        scheduled, budget = self._schedule_running(self.max_batched_tokens)
        if len(self.waiting) == before:
            scheduled += self._schedule_waiting(budget)
        return self._advance(scheduled)

    def _schedule_running(self, budget: int) -> tuple[list[tuple[Sequence, int]], int]:
        scheduled: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            tokens = min(sequence.length - sequence.computed, budget)
            while tokens and not self._allocate(sequence, tokens):
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return scheduled, budget
            if tokens:
                scheduled.append((sequence, tokens))
                budget -= tokens
        return scheduled, budget

    def _schedule_waiting(self, budget: int) -> list[tuple[Sequence, int]]:
        scheduled: list[tuple[Sequence, int]] = []
        while budget > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            cached = self._cached(sequence) if self.prefix_caching else ()
            tokens = min(sequence.length - len(cached) * self.block_size, budget)
            spare = self._spare if self.running else 0
            if not self._allocate(sequence, tokens, cached, sequence.length, spare):
                break
            self.running.append(self.waiting.popleft())
            if sequence.preempted:
                sequence.preempted = False
                self.preemptions += 1
            else:
                self.prompt_tokens += sequence.prompt_tokens
            sequence.prefilling = True
            scheduled.append((sequence, tokens))
            budget -= tokens
        return scheduled

    def _advance(self, scheduled: list[tuple[Sequence, int]]) -> Step:
        step = Step(context=sum([sequence.computed for sequence in self.running]))
        for sequence, tokens in scheduled:
            if sequence.prefilling:
                step.prefilled += tokens
            else:
                step.decoding += 1
            if sequence.computed < sequence.length:
                continue
            sequence.prefilling = False
            sequence.generated += 1
            step.emitted.append(sequence)
            if sequence.generated >= sequence.output_tokens:
                self._complete(sequence)
        self.generation_tokens += len(step.emitted)
        self.running = [sequence for sequence in self.running if not sequence.gone]
        return step

    def _complete(self, sequence: Sequence) -> None:
        sequence.gone = True
        self.completed += 1
        self.completed_prompt += sequence.prompt_tokens
        self.completed_output += sequence.generated
        self._release(sequence)

    def _cached(self, sequence: Sequence) -> tuple[Block, ...]:
        """The blocks its prompt finds, from its start on; its last token is always computed."""
        found: list[Block] = []
        for end in range(self.block_size, sequence.length, self.block_size):
            block = self._cache.get(sequence.content(end))
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def _allocate(
        self, sequence: Sequence, tokens: int, cached: tuple[Block, ...] = (), whole: int = 0, spare: int = 0
    ) -> bool:
        """Give it the blocks of its next `tokens`; False, and nothing changes, where they are not there.

        One that starts takes the `cached` ones first, and only where `whole` tokens fit and leave `spare` blocks.
        """
        computed = sequence.computed + len(cached) * self.block_size + tokens
        unused = sum(1 for block in cached if not block.references)
        needed = -(-max(whole, computed) // self.block_size) - len(sequence.blocks) - len(cached)
        if needed + unused + spare > len(self._free):
            return False
        for block in cached:
            if not block.references:
                self._free.remove(block)
            block.references += 1
            sequence.blocks.append(block)
        while len(sequence.blocks) * self.block_size < computed:
            block = self._free.popleft()
            if block.content is not None:
                del self._cache[block.content]
                block.content = None
            block.references = 1
            sequence.blocks.append(block)
        sequence.computed = computed
        if self.prefix_caching:
            self._remember(sequence)
        return True

    def _remember(self, sequence: Sequence) -> None:
        for number in range(sequence.computed // self.block_size):
            content, block = sequence.content((number + 1) * self.block_size), sequence.blocks[number]
            if block.content is None and content not in self._cache:
                self._cache[content] = block
                block.content = content

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.preempted = True
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Take its blocks: those without content are used next, the others last."""
        plain: list[Block] = []
        for block in reversed(sequence.blocks):
            block.references -= 1
            if not block.references:
                (self._free if block.content is not None else plain).append(block)
        self._free.extendleft(reversed(plain))
        sequence.blocks = []
        sequence.computed = 0
