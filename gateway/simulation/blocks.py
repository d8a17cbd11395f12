"""The block pool of the engine, with its prefix cache, modelled by runs of blocks rather than single blocks.

vLLM's cache is one queue of free blocks in their order of reuse: first those without cached content, then by the time
they were freed, a request's last block before its first. A request that hits a cached chain holds its leading blocks.
So in any chain of blocks (a prefix that a group shares, or the rest of one request) the held blocks come first, the
cached ones follow without a hole, and the deepest is reused first. Whole runs of blocks can therefore stand for blocks.
"""

from collections import deque


class Run:
    """Free cached blocks of one chain, freed together: positions from `low` to below `high`."""

    __slots__ = ("chain", "high", "low")

    def __init__(self, chain: "Chain", low: int, high: int) -> None:
        self.chain = chain
        self.low = low
        self.high = high


class Chain:
    """Blocks in sequence, by position, that prompts share."""

    __slots__ = ("_runs", "active", "present", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.active = start
        """Positions below are held by a request."""
        self.present = start
        """Positions below are held or cached."""
        self._runs: deque[Run] = deque()
        """Its free blocks, the deepest first. They were freed in this order."""

    def freed(self, low: int) -> Run:
        """Release the blocks from `low` on. They stay cached."""
        run = Run(self, low, self.active)
        self.active = low
        self._runs.append(run)
        return run

    def taken(self, high: int) -> int:
        """Hold the blocks below `high`, all of which are present. Returns how many of them were free."""
        free, self.active = high - self.active, high
        runs = self._runs
        while runs and runs[-1].low < high:
            run = runs[-1]
            if run.high > high:
                run.low = high
                break
            run.high = run.low
            runs.pop()
        return free

    def extended(self, high: int) -> None:
        """Hold the blocks below `high`, which are now computed."""
        self.active = max(self.active, high)
        self.present = max(self.present, high)

    def evicted(self, blocks: int) -> None:
        """Forget the deepest free blocks."""
        run = self._runs[0]
        run.high -= blocks
        self.present = run.high
        if run.high == run.low:
            self._runs.popleft()


class BlockPool:
    """The number of free blocks, and the content they still cache."""

    __slots__ = ("_blank", "_queue", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._blank = total
        """Free blocks without cached content."""
        self._queue: deque[Run] = deque()
        """The other free blocks, in their order of reuse."""

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.total - self.free

    def allocate(self, blocks: int) -> None:
        """Take this many blocks. As many must be free."""
        self.free -= blocks
        if blocks <= self._blank:
            self._blank -= blocks
            return
        blocks -= self._blank
        self._blank = 0
        queue = self._queue
        while blocks:
            run = queue[0]
            size = run.high - run.low
            if size <= blocks:
                queue.popleft()
            if size:
                gone = min(size, blocks)
                run.chain.evicted(gone)
                blocks -= gone

    def release(self, blocks: int) -> None:
        """Give back blocks without cached content."""
        self.free += blocks
        self._blank += blocks

    def release_cached(self, chain: Chain, low: int) -> None:
        """Give back the held blocks of a chain from position `low` on. Their content stays until they are reused."""
        if chain.active > low:
            run = chain.freed(low)
            self.free += run.high - low
            self._queue.append(run)

    def touch(self, chain: Chain, high: int) -> None:
        """Hold the blocks of a chain below position `high`. They must be present."""
        if high > chain.active:
            self.free -= chain.taken(high)
