"""The engine against the same scheduler written out: one object for each block, one visit for each request and step."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulation.engine import Engine
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.workload import Request
from tests.fakes.vllm.scheduler import Scheduler, Sequence

STEP = StepTime(0.01, 0.001, 0.0005, 0.00001)


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


class Twin:
    """A request as the written-out scheduler has it, and when its tokens came."""

    def __init__(self, number, request):
        self.number, self.arrival = number, request.arrival
        self.sequence = Sequence(request.prompt, request.output, owner=self, shared=request.shared)
        self.token_times = []


def play_plainly(machine, requests):
    engine = Scheduler(
        machine.blocks + 1,
        machine.block_size,
        machine.max_num_seqs,
        machine.max_num_batched_tokens,
        watermark=machine.watermark,
        prefix_caching=machine.prefix_caching,
    )
    twins, trace, now = [Twin(n, r) for n, r in enumerate(requests)], [], 0.0
    left = list(twins)
    while left or engine.unfinished:
        if not engine.unfinished:
            now = max(now, left[0].arrival)
        while left and left[0].arrival <= now:
            engine.add(left.pop(0).sequence)
        step = engine.step()
        now += (
            STEP.base
            + STEP.per_sequence * step.decoding
            + STEP.per_prefill_token * step.prefilled
            + STEP.per_context_token * step.context
        )
        for sequence in step.emitted:
            sequence.owner.token_times.append(now)
        running = [sequence.owner.number for sequence in engine.running]
        trace.append((now, engine.used_blocks, running, [s.owner.number for s in step.emitted if s.gone]))
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


@settings(max_examples=150)
@given(cases())
def test_it_is_the_scheduler_written_out(case):
    machine, requests = case
    twins, expected, preemptions = play_plainly(machine, requests)
    jobs, found, engine = play(machine, requests)
    assert found == expected
    assert engine.preemptions == preemptions
    assert engine.tokens == sum(request.output for request in requests)
    for job, twin in zip(jobs, twins, strict=True):
        assert (job.first_token_at, job.ended_at) == (twin.token_times[0], twin.token_times[-1])
        assert job.preemptions == twin.sequence.preemptions
        gaps = [b - a for a, b in zip(twin.token_times, twin.token_times[1:], strict=False)]
        assert job.worst_gap == pytest.approx(max(gaps, default=0.0))


@settings(max_examples=80)
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


@settings(max_examples=40)
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
