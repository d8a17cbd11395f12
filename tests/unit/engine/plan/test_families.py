from engine.plan import families
from engine.plan.layers import PATTERNS
from engine.plan.states import STATES


def test_a_family_is_known_as_one_thing() -> None:
    assert not families.PLAIN & families.ENCODERS
    assert not families.PLAIN & families.MLA
    assert not families.PLAIN & STATES.keys()


def test_a_pattern_is_told_once() -> None:
    assert not PATTERNS.keys() & families.FULL_EVERY.keys()


def test_families_that_alternate_have_the_window_chunk_or_state_they_alternate_with() -> None:
    told = {"sliding_window", "attention_chunk_size"}
    without = {"olmo3", "exaone4"}  # their configs always say it
    for family in families.FULL_EVERY.keys() - STATES.keys() - without:
        assert told & families.DEFAULTS[family].keys(), family
