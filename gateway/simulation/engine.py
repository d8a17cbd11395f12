"""The model of vLLM's V1 scheduler: the requests of each step, their blocks, and preemptions.

Running requests come first, in the order of their admission. If one finds no block for its next token, the youngest is
preempted to the head of the queue. Then, in a step without preemption, waiting requests are admitted in order, each
once its whole prompt fits beside the watermark. Prompts are prefilled in chunks that fill the batch.

Every decoding request advances by one token per step, so nothing is kept per token. A request remembers the step it
joined in, one table tells how many need a block in a step, and another which end in it. A step in which nothing happens
costs the same for one request as for a thousand.
"""

from bisect import bisect_right
from collections import defaultdict, deque

from gateway.admission.events import RequestId
from gateway.simulation.blocks import BlockPool, Chain
from gateway.simulation.machine import Machine
from gateway.simulation.workload import Request, in_blocks


class Job:
    """One request in the engine, and its fate. Times are seconds; None if it has not happened."""

    __slots__ = (
        "base",
        "computed",
        "dispatched_at",
        "edge",
        "ended_at",
        "first_token_at",
        "generated",
        "joined",
        "last_token_at",
        "number",
        "output",
        "preemptions",
        "private",
        "prompt",
        "refused",
        "request",
        "shared",
        "shared_blocks",
        "shared_held",
        "turn",
        "worst_gap",
    )

    def __init__(self, number: RequestId, request: Request) -> None:
        self.number = number
        self.request = request
        self.prompt = request.prompt
        self.output = request.output
        self.generated = 0
        """Generated tokens so far, while it does not decode."""
        self.computed = 0
        """Tokens with KV, while it prefills and when it starts to decode."""
        self.base = 0
        """While it decodes: its generated tokens minus the number of the last step."""
        self.joined = 0
        """The step of its first token since its admission; 0 while it does not decode."""
        self.edge = 0
        """The steps, modulo the block size, in which it needs a block."""
        self.turn = 0
        """The number of its admission."""
        self.shared: list[tuple[Chain, int]] = []
        """The parts of its prompt that it shares, in order, with the block at which each ends."""
        self.shared_blocks = 0
        """The blocks of all these parts, and the number of them that it holds."""
        self.shared_held = 0
        self.private = Chain()
        self.dispatched_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.ended_at: float | None = None
        self.worst_gap = 0.0
        """Longest time between two of its tokens."""
        self.preemptions = 0
        self.refused: str | None = None
        """The reason, if it was refused."""


class Engine:
    """One engine. `begin` schedules a step and returns its end; `complete` yields its tokens."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.pool = BlockPool(machine.blocks)
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.preemptions = 0
        self.tokens = 0
        """Generated so far."""
        self.steps = 0
        self.batch = (0, 0, 0)
        """The work of the last step begun: sequences that decode, tokens prefilled, tokens of context."""
        self.gauge_used = 0
        """Blocks in use, running and waiting requests at the end of the last step, as a scrape sees them."""
        self.gauge_running = 0
        self.gauge_waiting = 0
        self._completed = 0
        self._watermark = int(machine.watermark * machine.blocks)
        self._groups: dict[tuple[int, int], Chain] = {}
        """Chains by group and first block. Earlier requests may share only part of one."""
        self._holders: defaultdict[Chain, dict[Job, int]] = defaultdict(dict)
        """Running requests with a shared chain, and up to which block."""
        self._partial: Job | None = None
        """The request in the middle of its prefill: at most one, the last that runs, since it fills the batch."""
        self._blocked = False
        """Whether the first waiting request did not fit and nothing has been freed since."""
        self._prefilled: list[Job] = []
        """The requests whose prefill ends in the current step."""
        self.context = 0
        """Tokens of context of all running requests."""
        self._edges = [0] * machine.block_size
        """The number of requests that need a block, by step modulo the block size."""
        self._ends: dict[int, list[Job]] = {}
        """The requests that end, by step."""
        self._turns = 0
        self._began = 0.0
        self.busy_until = 0.0
        """The end of the last step begun."""
        self._tops: list[int] = []
        """The steps longer than all later ones, with their durations: the worst step of any span that ends now."""
        self._durations: list[float] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    def job(self, number: RequestId, request: Request) -> Job:
        """Make a request that may be submitted later."""
        job = Job(number, request)
        if self.machine.prefix_caching:
            for group, low, high in in_blocks(request, self.machine.block_size):
                chain = self._groups.setdefault((group, low), Chain(low))
                job.shared.append((chain, high))
                job.shared_blocks = high
            job.private = Chain(job.shared_blocks)
        return job

    def submit(self, job: Job, now: float) -> None:
        """Submit a request."""
        job.dispatched_at = now
        self.waiting.append(job)

    def generated(self, job: Job) -> int:
        """Generated tokens of a request so far."""
        return job.base + self._completed if job.joined else job.generated

    def to_prefill(self, job: Job) -> int:
        """Tokens still to prefill before its next token, given the prefix cache now."""
        if job.computed:
            return self._left(job)
        tokens = job.prompt + job.generated
        return tokens - self._hits(job, tokens)[0] * self.machine.block_size

    def progress(self) -> tuple[tuple[RequestId, int], ...]:
        """`(number, tokens so far)` of every decoding request."""
        completed = self._completed
        return tuple([(job.number, job.base + completed) for job in self.running if job.joined])

    def coast(self, now: float, until: float) -> float:
        """Take the steps up to `until` in which every running request gets a token and nothing else happens.

        They begin now. Returns the end of the last one. It equals `begin` and `complete`, at less cost.
        """
        if self._partial is not None or not self.running or (self.waiting and not self._blocked):
            return now
        pool, edges, ends, block = self.pool, self._edges, self._ends, self.machine.block_size
        cost = self.machine.step
        decoding = len(self.running)
        fixed = cost.base + cost.per_sequence * decoding
        per_token = cost.per_context_token
        context, step, longest = self.context, self.steps, 0.0
        while step + 1 not in ends:
            need = edges[(step + 1) % block]
            end = now + (fixed + per_token * (context + decoding))
            if need > pool.free or end > until:
                break
            if need:
                pool.allocate(need)
            step += 1
            context += decoding
            longest = max(longest, end - now)
            now = end
        if step > self.steps:
            self.tokens += decoding * (step - self.steps)
            self.steps, self.context = step, context
            self._ended(step, longest)
            self.gauge_used = pool.used
        return now

    def begin(self, now: float) -> float:
        """Schedule a step that starts now. Returns the time of its end."""
        self.steps += 1
        step = self.steps
        machine = self.machine
        block = machine.block_size
        self._began = now
        running, pool, partial = self.running, self.pool, self._partial
        decoding = len(running)
        budget = machine.max_num_batched_tokens
        need = self._edges[step % block]
        chunk = 0
        if partial is not None:
            decoding -= 1
            chunk = min(self._left(partial), budget - decoding)
            need += self._blocks(partial.computed + chunk) - self._blocks(partial.computed)
        admits = True
        if need > pool.free:
            admits = not self._make_room(step, chunk)
            partial = self._partial
            decoding = len(running)
            if partial is None:
                chunk = 0
            else:
                decoding -= 1
        elif need:
            pool.allocate(need)
        self.context += decoding
        prefill = 0
        if partial is not None and chunk:
            self._partial = None
            self._computed(partial, chunk)
            prefill = chunk
        self._blocked = False
        if admits and self.waiting and self._partial is None:
            prefill += self._admit(budget - decoding - prefill)
        self.batch = (decoding, prefill, self.context)
        cost = machine.step
        duration = (
            cost.base
            + cost.per_sequence * decoding
            + cost.per_prefill_token * prefill
            + cost.per_context_token * self.context
        )
        self.busy_until = now + duration
        return self.busy_until

    def complete(self, now: float) -> list[Job]:
        """End the step: every request has its token. Returns those that are done."""
        step = self.steps
        self._ended(step, now - self._began)
        done = self._ends.pop(step, [])
        if len(done) > 1:
            done.sort(key=_turn)
        self.tokens += len(self.running) - (self._partial is not None)
        for job in done:
            self._leave_decode(job, step)
            job.generated = job.output
        for job in self._prefilled:
            job.generated += 1
            if job.first_token_at is None:
                job.first_token_at = now
            else:
                job.worst_gap = max(job.worst_gap, now - job.last_token_at)
            job.base = job.generated - step
            if job.generated == job.output:
                done.append(job)
                continue
            job.joined = step
            job.edge = (step + 1 - job.computed) % self.machine.block_size
            self._edges[job.edge] += 1
            self._ends.setdefault(step + job.output - job.generated, []).append(job)
        self._prefilled.clear()
        for job in done:
            self._blocked = False
            job.ended_at = now
            self.running.remove(job)
            self._free(job)
        self.gauge_used = self.pool.used
        self.gauge_running = len(self.running)
        self.gauge_waiting = len(self.waiting)
        return done

    def _ended(self, step: int, duration: float) -> None:
        """Record the end of the steps up to this one, and the seconds of the longest."""
        self._completed = step
        tops, durations = self._tops, self._durations
        while durations and durations[-1] <= duration:
            durations.pop()
            tops.pop()
        durations.append(duration)
        tops.append(step)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.machine.block_size)

    @staticmethod
    def _left(job: Job) -> int:
        """Tokens a request still has to prefill."""
        return job.prompt + job.generated - job.computed

    def _computed(self, job: Job, tokens: int) -> None:
        """Prefill this many tokens of a request in this step. Their blocks are already allocated."""
        job.computed += tokens
        self.context += tokens
        if job.shared_held < job.shared_blocks:
            job.shared_held = min(job.shared_blocks, job.computed // self.machine.block_size)
            for chain, high in job.shared:
                chain.extended(min(job.shared_held, high))
        if self._left(job):
            self._partial = job
        else:
            self._prefilled.append(job)

    def _make_room(self, step: int, chunk: int) -> bool:
        """Allocate for each in turn. Preempt the youngest while blocks are short. Returns whether it preempted any."""
        pool, running, block = self.pool, self.running, self.machine.block_size
        preempted = False
        index = 0
        while index < len(running):
            job = running[index]
            if job is self._partial:
                need = self._blocks(job.computed + chunk) - self._blocks(job.computed)
            else:
                need = job.edge == step % block
            while need > pool.free:
                preempted = True
                victim = running.pop()
                self._preempt(victim)
                if victim is job:
                    return True
            if need:
                pool.allocate(need)
            index += 1
        return preempted

    def _preempt(self, job: Job) -> None:
        """Send a request back to the head of the queue. It must compute everything again."""
        self.preemptions += 1
        job.preemptions += 1
        if job is self._partial:
            self._partial = None
        else:
            step = self.steps - 1
            ends = self._ends[job.joined + job.output - (job.base + job.joined)]
            ends.remove(job)
            job.generated = job.base + step
            job.last_token_at = self._began  # the last step's end is this one's begin
            self._leave_decode(job, step)
        self._free(job)
        job.joined = job.computed = 0
        self.waiting.appendleft(job)

    def _leave_decode(self, job: Job, step: int) -> None:
        """Bring the state of a decoding request, implicit until now, up to this step."""
        self._edges[job.edge] -= 1
        job.computed += step - job.joined
        if step > job.joined:
            longest = self._durations[bisect_right(self._tops, job.joined)]
            job.worst_gap = max(job.worst_gap, longest)

    def _free(self, job: Job) -> None:
        self.context -= job.computed
        block, pool = self.machine.block_size, self.pool
        held, full = self._blocks(job.computed), job.computed // block
        if not self.machine.prefix_caching:
            pool.release(held)
            return
        pool.release(held - full)
        if full > job.shared_blocks:
            job.private.extended(full)
            pool.release_cached(job.private, job.shared_blocks)
        job.shared_held = 0
        for chain, _ in reversed(job.shared):
            holders = self._holders[chain]
            del holders[job]
            held = max([min(holder.shared_held, high) for holder, high in holders.items()], default=0)
            pool.release_cached(chain, max(chain.start, held))

    def _admit(self, budget: int) -> int:
        """Admit waiting requests, in order, as long as they fit. Returns the tokens to prefill."""
        waiting, running, pool = self.waiting, self.running, self.pool
        block = self.machine.block_size
        left = budget
        while left > 0 and waiting and len(running) < self.machine.max_num_seqs:
            job = waiting[0]
            tokens = job.prompt + job.generated
            hits, shared_hits, touched = self._hits(job, tokens)
            spare = self._watermark if running else 0
            if self._blocks(tokens) - hits + touched + spare > pool.free:
                self._blocked = True
                break
            waiting.popleft()
            running.append(job)
            self._turns += 1
            job.turn = self._turns
            for chain, high in job.shared:
                self._holders[chain][job] = high
                pool.touch(chain, min(shared_hits, high))
            job.shared_held = shared_hits
            if hits > shared_hits:
                pool.touch(job.private, hits)
            job.computed = hits * block
            self.context += job.computed
            chunk = min(tokens - job.computed, left)
            pool.allocate(self._blocks(job.computed + chunk) - hits)
            self._computed(job, chunk)
            left -= chunk
        return budget - left

    def _hits(self, job: Job, tokens: int) -> tuple[int, int, int]:
        """The cached blocks that lead its tokens; those of them in shared chains; those still free."""
        if not self.machine.prefix_caching:
            return 0, 0, 0
        most = (tokens - 1) // self.machine.block_size
        hits, touched = 0, 0
        for chain, high in job.shared:
            hits = min(high, chain.present)
            touched += max(0, hits - chain.active)
            if hits < high:
                break
        shared_hits = hits
        if hits == job.shared_blocks and job.private.present > hits:
            hits = min(most, job.private.present)
            touched += hits - shared_hits
        return hits, shared_hits, touched


def _turn(job: Job) -> int:
    return job.turn
