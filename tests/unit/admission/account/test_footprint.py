from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.account.footprint import Footprint
from gateway.admission.events import Demand


def brute_force(prompts, n, block, shares, generated):
    """Every block by name: which prompt, where it starts, and whose it is unless shared."""
    return len(
        {
            (index, start, None if shares and start + block < prompt else sequence)
            for index, prompt in enumerate(prompts)
            for sequence in range(n)
            for start in range(0, prompt + generated, block)
        }
    )


DEMANDS = st.tuples(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, 4))


@given(DEMANDS, st.sampled_from([1, 2, 3, 16, 32]), st.booleans(), st.integers(1, 80))
def test_it_equals_the_count_block_by_block(demand, block, shares, generated):
    prompts, n = demand
    footprint = Footprint(Demand(tuple(prompts), 100, n), block, shares_prefix=shares)
    assert footprint.blocks(generated) == brute_force(prompts, n, block, shares, generated)


@given(DEMANDS, st.sampled_from([1, 2, 3, 16, 32]), st.integers(1, 80))
def test_the_next_growth_is_the_first_token_that_takes_another_block(demand, block, generated):
    prompts, n = demand
    footprint = Footprint(Demand(tuple(prompts), 1000, n), block, shares_prefix=True)
    now = footprint.blocks(generated)
    following = next(g for g in range(generated + 1, generated + block + 2) if footprint.blocks(g) > now)
    assert footprint.growth(generated) == (footprint.blocks(generated), following)


def test_sequences_share_the_full_blocks_of_their_prompt_only():
    assert Footprint(Demand((40,), 100, 3), 16, shares_prefix=True).blocks(1) == 2 + 3 * 1
    assert Footprint(Demand((40,), 100, 3), 16, shares_prefix=False).blocks(1) == 3 * 3


def test_a_block_that_ends_with_the_prompt_is_not_shared():
    """The engine computes the last prompt token for each sequence anew."""
    assert Footprint(Demand((32,), 100, 2), 16, shares_prefix=True).blocks(1) == 1 + 2 * 2


def test_it_takes_no_memory_for_the_tokens_of_a_block():
    """How many there are, the engine says."""
    footprint = Footprint(Demand((40, 70), 100), 2**48, shares_prefix=True)
    assert footprint.growth(1) == (2, 2**48 - 69)
