import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.limits.gcra import WINDOW, Rate


def test_a_minutes_worth_may_be_used_at_once_and_comes_back_evenly():
    rate = Rate(60)
    rate.charge(60, 100.0)
    assert rate.missing(1, 100.0) == pytest.approx(1.0)
    assert rate.missing(10, 100.0) == pytest.approx(10.0)
    assert rate.missing(10, 110.0) == 0.0
    quota = rate.quota(130.0)
    assert (quota.limit, quota.remaining, quota.reset) == (60, 30, pytest.approx(30.0))


def test_more_than_a_minutes_worth_is_never_allowed():
    assert Rate(10).missing(11, 0.0) == float("inf")
    assert Rate(10).missing(10, 0.0) == 0.0


def test_a_charge_that_was_not_foreseen_is_paid_by_the_next():
    rate = Rate(100)
    rate.charge(300, 0.0)
    assert rate.quota(0.0).remaining == 0
    assert rate.missing(1, 0.0) == pytest.approx(120.6)
    assert rate.missing(1, 120.7) == 0.0


def test_what_is_given_back_may_be_used_again_and_no_more_than_was_there():
    rate = Rate(10)
    charge = rate.charge(10, 0.0)
    rate.refund(4, charge, 0.0)
    assert rate.quota(0.0).remaining == 4
    rate.refund(100, charge, 0.0)
    assert rate.quota(0.0).remaining == 10


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 1200)), max_size=60),
)
def test_no_span_of_time_gets_more_than_its_rate_and_a_minutes_worth(limit, asked):
    rate, now, granted = Rate(limit), 1000.0, []
    for gap, amount in asked:
        now += gap
        missing = rate.missing(amount, now)
        if missing == 0.0:
            rate.charge(amount, now)
            granted.append((now, amount))
        elif missing < float("inf"):
            assert rate.missing(amount, now + missing * 1.0001 + 1e-3) == 0.0, "it may come at the time told"
    for first, (began, _) in enumerate(granted):
        total = 0
        for at, amount in granted[first:]:
            total += amount
            assert total <= limit * (1 + (at - began) / WINDOW) * (1 + 1e-5)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30), st.integers(0, 40)), max_size=40))
def test_no_more_comes_back_than_if_it_had_never_been_charged(steps):
    rate, now, charged = Rate(60), 0.0, []
    for gap, amount, back in steps:
        now += gap
        if rate.missing(amount, now) == 0:
            charged.append((amount, rate.charge(amount, now)))
        if back < len(charged):
            rate.refund(*charged.pop(back), now)
        full_at = 0.0
        for kept, charge in charged:
            full_at = max(full_at, charge.at) + kept
        assert rate.debt(now) >= full_at - now - 1e-6
