"""The engine against the same scheduler written out: one object for each block, one visit for each request and step."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulation.engine import Engine
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.workload import Request

STEP = StepTime(0.01, 0.001, 0.0005, 0.00001)


@dataclass(eq=False)
class Block:
    content: object = None
    """What it caches: all the tokens up to its end."""
    references: int = 0


@dataclass(eq=False)
class Twin:
    """A request of the plain engine."""

    number: int
    request: Request
    generated: int = 0
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    preemptions: int = 0
    prefilling: bool = False
    ended_at: float | None = None

    @property
    def tokens(self):
        return self.request.prompt + self.generated

    def content(self, end):
        """The tokens up to `end`, or what stands for them."""
        if end < self.request.prompt:  # the last token is computed for each request anew
            for group, last in self.request.shared:
                if end <= last:
                    return "group", group, end
        return "own", self.number, end


class PlainEngine:
    """vLLM's scheduler, block pool and prefix cache, as they are written."""

    def __init__(self, machine):
        self.machine = machine
        self.queue = [Block() for _ in range(machine.blocks)]
        self.cache = {}
        self.running, self.waiting = [], []
        self.preemptions = 0

    @property
    def used(self):
        return self.machine.blocks - len(self.queue)

    def lookup(self, twin):
        hits, block = [], self.machine.block_size
        if self.machine.prefix_caching:
            while (len(hits) + 1) * block <= twin.tokens - 1:
                found = self.cache.get(twin.content((len(hits) + 1) * block))
                if found is None:
                    break
                hits.append(found)
        return hits

    def allocate(self, twin, tokens, hits=(), full=0, spare=0):
        """Blocks for the next `tokens` of a request; False, and nothing changes, where they are not there."""
        block = self.machine.block_size
        computed = twin.computed + len(hits) * block
        free_hits = sum(1 for hit in hits if not hit.references)
        for end in (full, computed + tokens):
            if -(-end // block) - len(twin.blocks) - len(hits) + free_hits + spare > len(self.queue):
                return False
        for hit in hits:
            if not hit.references:
                self.queue.remove(hit)
            hit.references += 1
            twin.blocks.append(hit)
        while len(twin.blocks) * block < computed + tokens:
            new = self.queue.pop(0)
            if new.content is not None:
                del self.cache[new.content]
                new.content = None
            new.references = 1
            twin.blocks.append(new)
        twin.computed = computed + tokens
        if self.machine.prefix_caching:
            for index in range(twin.computed // block):
                content = twin.content((index + 1) * block)
                if twin.blocks[index].content is None and content not in self.cache:
                    self.cache[content] = twin.blocks[index]
                    twin.blocks[index].content = content
        return True

    def free(self, twin):
        first, last = [], []
        for block in reversed(twin.blocks):
            block.references -= 1
            if not block.references:
                (first if block.content is None else last).append(block)
        self.queue[:] = [*first, *self.queue, *last]
        twin.blocks, twin.computed = [], 0

    def preempt_for(self, twin):
        """Send the youngest back; False where that is the one that needs the room."""
        victim = self.running.pop()
        self.free(victim)
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.insert(0, victim)
        return victim is not twin

    def schedule_running(self, budget):
        scheduled = []
        for twin in self.running:
            tokens = min(twin.tokens - twin.computed, budget)
            while tokens and not self.allocate(twin, tokens):
                if not self.preempt_for(twin):
                    return scheduled
            if tokens:
                scheduled.append((twin, tokens))
                budget -= tokens
        return scheduled

    def schedule_waiting(self, budget):
        machine, scheduled = self.machine, []
        while budget > 0 and self.waiting and len(self.running) < machine.max_num_seqs:
            twin = self.waiting[0]
            hits = self.lookup(twin)
            tokens = min(twin.tokens - len(hits) * machine.block_size, budget)
            spare = int(machine.watermark * machine.blocks) if self.running else 0
            if not self.allocate(twin, tokens, hits, twin.tokens, spare):
                break
            self.running.append(self.waiting.pop(0))
            twin.prefilling = True
            scheduled.append((twin, tokens))
            budget -= tokens
        return scheduled

    def step(self, now):
        """The time at which the step ends, with everything done that is done by then, and who ended."""
        budget, before = self.machine.max_num_batched_tokens, self.preemptions
        scheduled = self.schedule_running(budget)
        if self.preemptions == before:
            scheduled += self.schedule_waiting(budget - sum(tokens for _, tokens in scheduled))
        decoding = sum(1 for twin, _ in scheduled if not twin.prefilling)
        prefill = sum(tokens for twin, tokens in scheduled if twin.prefilling)
        context = sum(twin.computed for twin in self.running)
        cost = self.machine.step
        now += (
            cost.base
            + cost.per_sequence * decoding
            + cost.per_prefill_token * prefill
            + cost.per_context_token * context
        )
        done = []
        for twin, _ in scheduled:
            if twin.computed < twin.tokens:
                continue
            twin.prefilling = False
            twin.generated += 1
            twin.token_times.append(now)
            if twin.generated == twin.request.output:
                twin.ended_at = now
                self.running.remove(twin)
                self.free(twin)
                done.append(twin)
        return now, done


machines = st.builds(
    Machine,
    kv_tokens=st.integers(20, 120).map(lambda blocks: blocks * 4),
    block_size=st.just(4),
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(12, 60),
    watermark=st.sampled_from([0.0, 0.05, 0.2]),
    prefix_caching=st.booleans(),
    step=st.just(STEP),
)


@st.composite
def workloads(draw, machine):
    """Requests that each fit the machine alone, many at once."""
    requests, now = [], 0.0
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0.0, 0.0, 0.01, 0.3]))
        prompt = draw(st.integers(1, machine.kv_tokens // 2))
        output = draw(st.integers(1, machine.kv_tokens - prompt))
        requests.append(Request(now, prompt, output, shared=draw(paths(prompt))))
    return requests


@st.composite
def paths(draw, prompt):
    """From the root of a tree that is the same for all, as deep as the prompt is long, or less."""
    parts, group, end, limit = [], 0, 0, draw(st.integers(0, prompt))
    for length in (5, 9, 4):
        group = 10 * group + draw(st.sampled_from([1, 2]))
        if end >= limit:
            break
        end = min(end + length + group % 3, limit)
        parts.append((group, end))
    return tuple(parts)


@st.composite
def cases(draw):
    machine = draw(machines)
    return machine, draw(workloads(machine))


def play_plainly(machine, requests):
    engine, trace, now, left = PlainEngine(machine), [], 0.0, [Twin(n, r) for n, r in enumerate(requests)]
    twins = list(left)
    while left or engine.running or engine.waiting:
        if not engine.running and not engine.waiting:
            now = max(now, left[0].request.arrival)
        while left and left[0].request.arrival <= now:
            engine.waiting.append(left.pop(0))
        now, done = engine.step(now)
        trace.append((now, engine.used, [t.number for t in engine.running], [t.number for t in done]))
    return twins, trace, engine.preemptions


def play(machine, requests, watch=lambda _: None, *, coasting=False):
    engine, trace, now = Engine(machine), [], 0.0
    jobs = [engine.job(number, request) for number, request in enumerate(requests)]
    left = list(jobs)
    while left or not engine.idle:
        if engine.idle:
            now = max(now, left[0].request.arrival)
        while left and left[0].request.arrival <= now:
            engine.submit(left.pop(0), now)
        if coasting:
            now = engine.coast(now, left[0].request.arrival if left else inf)
        while left and left[0].request.arrival <= now:
            engine.submit(left.pop(0), now)
        now = engine.begin(now)
        watch(engine)
        done = engine.complete(now)
        watch(engine)
        trace.append((now, engine.pool.used, [j.number for j in engine.running], [j.number for j in done]))
    return jobs, trace, engine


@settings(max_examples=150, deadline=None)
@given(cases())
def test_it_is_the_scheduler_written_out(case):
    machine, requests = case
    twins, expected, preemptions = play_plainly(machine, requests)
    jobs, found, engine = play(machine, requests)
    assert found == expected
    assert engine.preemptions == preemptions
    assert engine.tokens == sum(request.output for request in requests)
    for job, twin in zip(jobs, twins, strict=True):
        assert (job.first_token_at, job.ended_at) == (twin.token_times[0], twin.ended_at)
        assert job.preemptions == twin.preemptions
        gaps = [b - a for a, b in zip(twin.token_times, twin.token_times[1:], strict=False)]
        assert job.worst_gap == pytest.approx(max(gaps, default=0.0))


@settings(max_examples=80, deadline=None)
@given(cases())
def test_coasting_changes_nothing(case):
    machine, requests = case
    jobs, trace, engine = play(machine, requests)
    coasting, some, coasted = play(machine, requests, coasting=True)
    assert (coasted.steps, coasted.tokens, coasted.preemptions) == (engine.steps, engine.tokens, engine.preemptions)
    assert set(map(repr, some)) <= set(map(repr, trace))
    for job, other in zip(jobs, coasting, strict=True):
        assert (job.first_token_at, job.ended_at, job.worst_gap, job.preemptions) == (
            other.first_token_at,
            other.ended_at,
            other.worst_gap,
            other.preemptions,
        )


@settings(max_examples=40, deadline=None)
@given(cases())
def test_blocks_are_conserved(case):
    machine, requests = case

    def watch(engine):
        assert 0 <= engine.pool.free <= machine.blocks

    jobs, _, engine = play(machine, requests, watch)
    assert engine.pool.used == 0
    assert all(job.ended_at is not None and job.generated == job.output for job in jobs)


def test_progress_counts_the_tokens_of_ended_steps():
    engine = Engine(Machine(kv_tokens=400, block_size=4, step=STEP))
    job = engine.job(7, Request(0.0, 10, 5))
    engine.submit(job, 0.0)
    end = engine.begin(0.0)
    assert engine.progress() == ()
    engine.complete(end)
    assert engine.progress() == ((7, 1),)
    end = engine.begin(end)
    assert engine.progress() == ((7, 1),)
    engine.complete(end)
    assert engine.progress() == ((7, 2),)


def test_a_full_cache_preempts_the_youngest_and_it_resumes_where_it_was():
    machine = Machine(kv_tokens=40, block_size=4, step=STEP)
    jobs, _, engine = play(machine, [Request(0.0, 12, 20), Request(0.0, 12, 20)])
    assert [job.preemptions for job in jobs] == [0, 1]
    assert engine.tokens == 40
    assert jobs[1].worst_gap > 5 * jobs[0].worst_gap


def test_a_watermark_keeps_blocks_free_for_those_that_run():
    requests = [Request(0.0, 12, 20), Request(0.0, 12, 20)]
    _, _, bare = play(Machine(kv_tokens=40, block_size=4, step=STEP), requests)
    _, _, spared = play(Machine(kv_tokens=40, block_size=4, watermark=0.5, step=STEP), requests)
    assert (bare.preemptions, spared.preemptions) == (1, 0)


def test_a_shared_prefix_is_held_and_prefilled_once():
    machine = Machine(kv_tokens=400, block_size=4, step=STEP)
    alike = [Request(0.0, 80, 4, shared=((0, 76),)), Request(0.0, 80, 4, shared=((0, 76),))]
    _, together, _ = play(machine, alike)
    _, apart, _ = play(machine, [Request(0.0, 80, 4), Request(0.0, 80, 4)])
    assert together[0][1] == 21
    assert apart[0][1] == 40
    assert together[0][0] < apart[0][0]


def test_a_prompt_longer_than_the_batch_is_prefilled_in_chunks():
    machine = Machine(kv_tokens=400, block_size=4, max_num_seqs=8, max_num_batched_tokens=32, step=STEP)
    jobs, trace, _ = play(machine, [Request(0.0, 100, 2)])
    assert jobs[0].first_token_at == trace[3][0]
