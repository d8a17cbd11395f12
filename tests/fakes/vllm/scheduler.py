"""The part of vLLM's scheduler that admission control is about, one step at a time and without a clock.

It follows V1: the running sequences go first, each may need a block more, the last admitted is preempted by
recomputation when there is none; a waiting sequence starts only where its whole prompt fits, first come first
served, and none starts in a step that preempted. Prefix caching is not modelled: every sequence holds its own blocks.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Sequence:
    """One running generation: `prompt_tokens` in, `output_tokens` out."""

    prompt_tokens: int
    output_tokens: int
    owner: Any = None
    """Whom the server tells about each token."""
    index: int = 0
    """Which choice of the answer it is."""
    generated: int = 0
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: int = 0
    preempted: bool = False
    gone: bool = False

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Step:
    """What one step did."""

    emitted: list[Sequence] = field(default_factory=list)
    """Sequences that got one more token."""
    prefilled: int = 0
    """Tokens computed beyond the one per decoding sequence."""


class Scheduler:
    """Blocks of KV cache, a running list and a waiting queue."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_batched_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.free_blocks = num_blocks - 1
        """The null block is never handed out."""
        self.preemptions = 0
        """Counted, as vLLM does, when the preempted sequence runs again."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.completed = 0
        """Sequences generated to their end."""
        self.completed_prompt = 0
        self.completed_output = 0

    @property
    def usage(self) -> float:
        """Share of the usable blocks that is held, 0 to 1."""
        return 1 - self.free_blocks / (self.num_blocks - 1)

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
        if sequence.blocks:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def step(self) -> Step:
        """Compute once: every running sequence that got its blocks moves on."""
        scheduled: list[tuple[Sequence, int]] = []
        budget = self.max_batched_tokens
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            tokens = min(sequence.length - sequence.computed, budget)
            while not self._allocate(sequence, sequence.computed + tokens):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            if sequence.preempted:
                break
            scheduled.append((sequence, tokens))
            budget -= tokens
            position += 1
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if self.blocks_for(sequence.length) > self.free_blocks:
                break
            self.waiting.popleft()
            tokens = min(sequence.length, budget)
            self._allocate(sequence, tokens)
            if sequence.preempted:
                sequence.preempted = False
                self.preemptions += 1
            else:
                self.prompt_tokens += sequence.prompt_tokens
            self.running.append(sequence)
            scheduled.append((sequence, tokens))
            budget -= tokens
        return self._advance(scheduled)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _advance(self, scheduled: list[tuple[Sequence, int]]) -> Step:
        step = Step()
        finished = False
        for sequence, tokens in scheduled:
            sequence.computed += tokens
            step.prefilled += tokens - 1
            if sequence.computed < sequence.length:
                continue
            sequence.generated += 1
            step.emitted.append(sequence)
            if sequence.generated >= sequence.output_tokens:
                sequence.gone = finished = True
                self.completed += 1
                self.completed_prompt += sequence.prompt_tokens
                self.completed_output += sequence.generated
                self._release(sequence)
        self.generation_tokens += len(step.emitted)
        if finished:
            self.running = [sequence for sequence in self.running if not sequence.gone]
        return step

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        missing = self.blocks_for(tokens) - sequence.blocks
        if missing > self.free_blocks:
            return False
        if missing > 0:
            self.free_blocks -= missing
            sequence.blocks += missing
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        sequence.preempted = True
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0
