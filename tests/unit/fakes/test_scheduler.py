"""The fake's scheduler keeps the rules of vLLM's that admission control depends on."""

from tests.fakes.vllm.scheduler import Scheduler, Sequence


def scheduler(blocks: int = 9, size: int = 4, seqs: int = 16, batched: int = 64) -> Scheduler:
    return Scheduler(blocks, size, seqs, batched)


def run(engine: Scheduler, limit: int = 1000) -> int:
    steps = 0
    while engine.unfinished:
        engine.step()
        steps += 1
        assert steps < limit
        assert 0 <= engine.used_blocks <= engine.num_blocks - 1
    return steps


def test_prefill_yields_the_first_token_and_every_step_one_more():
    engine = scheduler()
    sequence = Sequence(prompt_tokens=5, output_tokens=3)
    engine.add(sequence)
    step = engine.step()
    assert (step.emitted, step.prefilled, sequence.generated) == ([sequence], 5, 1)
    assert run(engine) == 2
    assert sequence.generated == 3


def test_usage_leaves_the_null_block_out():
    engine = scheduler(blocks=9, size=4)
    engine.add(Sequence(prompt_tokens=16, output_tokens=2))
    engine.step()
    assert engine.usage == 4 / 8


def test_blocks_are_all_free_after_the_last_token():
    engine = scheduler()
    for _ in range(3):
        engine.add(Sequence(prompt_tokens=5, output_tokens=4))
    run(engine)
    assert engine.usage == 0
    assert engine.generation_tokens == 12


def test_the_last_admitted_is_preempted_and_still_finishes():
    engine = scheduler(blocks=9, size=4)
    first, second = Sequence(12, 16), Sequence(12, 16)
    engine.add(first)
    engine.add(second)
    while not second.preempted:
        engine.step()
    assert engine.running == [first]
    assert engine.preemptions == 0, "vLLM counts a preemption when the sequence runs again"
    run(engine)
    assert (first.generated, second.generated) == (16, 16)
    assert engine.preemptions == 1


def test_a_prompt_that_does_not_fit_holds_up_the_ones_behind_it():
    engine = scheduler(blocks=9, size=4)
    engine.add(Sequence(20, 8))
    engine.add(Sequence(20, 8))
    engine.add(Sequence(1, 1))
    engine.step()
    assert (len(engine.running), len(engine.waiting)) == (1, 2)


def test_no_more_sequences_run_than_allowed():
    engine = scheduler(blocks=100, seqs=2)
    for _ in range(5):
        engine.add(Sequence(1, 2))
    engine.step()
    assert (len(engine.running), len(engine.waiting)) == (2, 3)


def test_a_long_prompt_is_prefilled_in_pieces():
    engine = scheduler(blocks=100, batched=10)
    sequence = Sequence(25, 1)
    engine.add(sequence)
    assert [len(engine.step().emitted) for _ in range(3)] == [0, 0, 1]


def test_an_abort_frees_blocks_wherever_the_sequence_is():
    engine = scheduler(blocks=9, size=4)
    running, waiting, unknown = Sequence(20, 8), Sequence(20, 8), Sequence(20, 8)
    engine.add(running)
    engine.add(waiting)
    engine.step()
    for sequence in (running, waiting, unknown, running):
        engine.abort(sequence)
    assert engine.unfinished == 0
    assert engine.usage == 0
