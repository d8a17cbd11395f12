import pytest

from engine.plan.published import MODELS, STARTS, compare


def name(start):
    return f"{start.model} {start.card} {start.version}"


@pytest.mark.parametrize("start", STARTS, ids=name)
def test_a_published_start_lies_in_the_range_or_says_why_not(start):
    found = compare(start)
    assert found.inside == (not start.differs), found.available
    assert start.url.startswith("https://")


@pytest.mark.parametrize("start", [start for start in STARTS if start.tokens], ids=name)
def test_kv_tokens_follow_from_the_logged_bytes(start):
    found = compare(start).tokens
    rounding = 0.005 / start.available  # the log has two decimals
    assert found.low == pytest.approx(start.tokens, rel=rounding + 0.002)
    assert found.high == pytest.approx(start.tokens, rel=rounding + 0.002)


def test_there_are_enough_of_them_and_few_outside():
    assert len(STARTS) >= 10
    assert sum(bool(start.differs) for start in STARTS) <= 2
    assert {start.model for start in STARTS} == set(MODELS)
