import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.prefix import STEPS, UNIT, new_key, prefix_of

KEY = bytes(32)


def ids(length: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(50_000), k=length)  # noqa: S311


@pytest.mark.parametrize(("length", "parts"), [(0, 0), (64, 0), (65, 1), (128, 1), (129, 2), (1025, 16), (4097, 48)])
def test_only_full_parts_that_leave_a_token_to_compute_count(length: int, parts: int) -> None:
    ends = [end for end, _ in prefix_of(ids(length), KEY, "")]
    assert len(ends) == parts
    assert all(end % UNIT == 0 and end < length for end in ends)
    assert ends == sorted(set(ends))


def test_a_long_prompt_has_few_parts() -> None:
    prefix = prefix_of(ids(100_000), KEY, "")
    assert len(prefix) < 150
    ends = [0, *(end for end, _ in prefix), 100_000]
    assert all(after - before <= max(UNIT, after / STEPS) for before, after in itertools.pairwise(ends))


@given(st.integers(0, 3000), st.integers(0, 1500), st.integers(0, 1500))
def test_prompts_agree_exactly_as_far_as_their_tokens_do(common: int, one: int, other: int) -> None:
    start = ids(common)
    first = prefix_of([*start, *ids(one, 2)], KEY, "m")
    second = prefix_of([*start, 50_001, *ids(other, 3)], KEY, "m")
    assert {end for end, _ in set(first) & set(second)} == {
        end for end, _ in first if end <= common and end < common + 1 + other
    }


def test_the_key_and_the_seed_decide_every_hash() -> None:
    ways = [(KEY, "a"), (KEY, "b"), (new_key(), "a"), (new_key(), "a")]
    hashes = [{hashed for _, hashed in prefix_of(ids(300), key, seed)} for key, seed in ways]
    assert len(set().union(*hashes)) == 4 * 4
    assert all(0 <= hashed < 2**64 for some in hashes for hashed in some)


@pytest.mark.parametrize("wrong", [-1, 2**32, 0.5, "1", None])
def test_what_is_no_token_id_has_no_parts(wrong: int) -> None:
    assert prefix_of([wrong, *ids(200)], KEY, "") == ()
