import pytest

from gateway.admission.account.prefill import PrefillRate


def test_nothing_known_takes_no_time():
    assert PrefillRate().seconds(1000) == 0


def test_it_learns_seconds_per_token():
    rate = PrefillRate()
    for tokens in (100, 2000, 500) * 20:
        rate.learn(tokens / 4000, tokens)
    assert rate.seconds(8000) == pytest.approx(2.0)


def test_a_cached_prompt_that_took_no_tokens_is_no_division_by_zero():
    rate = PrefillRate()
    rate.learn(0.02, 0)
    assert rate.seconds(100) == 0
