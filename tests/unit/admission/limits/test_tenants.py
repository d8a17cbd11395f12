import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.events import Owed
from gateway.admission.limits.limit import Limit, Limits
from gateway.admission.limits.tenants import Tenants


def tenants(**limits):
    return Tenants({"alice": Limits(**limits)})


def test_a_flow_without_limits_is_never_refused_and_not_charged():
    account = Tenants({})
    assert all(account.charge("bob", number, 10**6, 0.0) is None for number in range(1000))
    assert not account.limited
    assert account.standing("bob", 0.0) is None


def test_requests_per_minute_say_when_the_next_may_come():
    account = tenants(requests_per_minute=2)
    assert account.charge("alice", 1, 5, 0.0) is None
    assert account.charge("alice", 2, 5, 0.0) is None
    exceeded = account.charge("alice", 3, 5, 0.0)
    assert (exceeded.which, exceeded.limit, exceeded.asked) == (Limit.REQUESTS, 2, 1)
    assert exceeded.retry_after == pytest.approx(30.0)
    assert account.charge("alice", 3, 5, 30.0) is None


def test_tokens_are_charged_by_the_prompts_at_first_and_by_the_answer_at_its_end():
    account = tenants(tokens_per_minute=100)
    assert account.charge("alice", 1, 40, 0.0) is None
    assert account.standing("alice", 0.0).tokens.remaining == 60
    account.settle(1, 30, 0.0)
    assert account.standing("alice", 0.0).tokens.remaining == 30
    assert account.charge("alice", 2, 31, 0.0).which is Limit.TOKENS
    assert account.charge("alice", 2, 30, 0.0) is None


@pytest.mark.parametrize(("told", "left"), [(10, 85), (60, 35), (None, 55)])
def test_an_estimated_prompt_is_charged_at_its_end(told, left):
    account = tenants(tokens_per_minute=100)
    account.charge("alice", 1, 40, 0.0, estimated=True)
    assert account.standing("alice", 0.0).tokens.remaining == 100
    account.settle(1, 5, 0.0, told)
    assert account.standing("alice", 0.0).tokens.remaining == left


def test_no_estimate_is_over_a_limit_but_what_was_used_is():
    """A bound may be fifty times the tokens. Charged at first it would keep others out until it was corrected."""
    account = tenants(tokens_per_minute=100)
    for request in range(20):
        assert account.exceeded("alice", 500, 0.0, estimated=True) is None
        assert account.charge("alice", request, 500, 0.0, estimated=True) is None
    for request in range(20):
        account.settle(request, 5, 0.0, 10)
    assert account.charge("alice", 30, 500, 0.0, estimated=True).retry_after == pytest.approx(120.0)


def test_an_estimate_that_an_earlier_owner_knew_is_charged_once():
    successor = tenants(tokens_per_minute=100)
    successor.declare("alice", 1, 80, estimated=True)
    successor.settle(1, 0, 0.0, 30)
    assert successor.standing("alice", 0.0).tokens.remaining == 70


def test_a_prompt_over_the_whole_limit_has_no_time_to_come_back():
    exceeded = tenants(tokens_per_minute=100).charge("alice", 1, 101, 0.0)
    assert (exceeded.asked, exceeded.retry_after) == (101, None)


def test_a_refused_request_is_charged_nothing():
    account = tenants(requests_per_minute=10, tokens_per_minute=100)
    assert account.charge("alice", 1, 101, 0.0) is not None
    assert account.standing("alice", 0.0).requests.remaining == 10


def test_an_answer_whose_client_left_costs_the_tokens_seen():
    account = tenants(tokens_per_minute=100)
    account.charge("alice", 1, 10, 0.0)
    account.generated([(1, 20), (7, 3)])
    account.settle(1, None, 0.0)
    assert account.standing("alice", 0.0).tokens.remaining == 70


def test_what_no_engine_got_is_given_back():
    account = tenants(requests_per_minute=10, tokens_per_minute=100)
    account.charge("alice", 1, 10, 0.0)
    account.refund(1, 0.0)
    account.refund(1, 0.0)
    standing = account.standing("alice", 0.0)
    assert (standing.requests.remaining, standing.tokens.remaining) == (10, 100)


@pytest.mark.parametrize("first", [-1, 1], ids=["the last first", "in their order"])
def test_what_waited_and_was_given_back_is_no_second_minutes_worth(first):
    account = tenants(requests_per_minute=60)
    ids = iter(range(1000))

    def taken(now):
        took = []
        while account.charge("alice", request := next(ids), 10, now) is None:
            took.append(request)
        return took

    waiting = taken(0.0)
    assert len(waiting) == 60
    sent = taken(45.0)
    assert len(sent) == 45
    for request in waiting[::first]:
        account.refund(request, 45.0)
    sent += taken(45.0)
    assert len(sent) <= 60, "a minute's worth at once"
    if first > 0:
        assert len(sent) == 60


def test_clients_that_leave_at_once_get_all_back():
    account = tenants(requests_per_minute=60, tokens_per_minute=600)
    for request in range(60):
        account.charge("alice", request, 10, 0.0)
    for request in (*range(30), *range(59, 29, -1)):
        account.refund(request, 0.0)
    standing = account.standing("alice", 0.0)
    assert (standing.requests.remaining, standing.tokens.remaining) == (60, 600)


def test_requests_at_once_are_those_that_wait_or_run():
    account = tenants(concurrent=2)
    for number in (1, 2):
        assert account.charge("alice", number, 5, 0.0) is None
    exceeded = account.charge("alice", 3, 5, 0.0)
    assert (exceeded.which, exceeded.limit, exceeded.retry_after) == (Limit.CONCURRENT, 2, None)
    account.settle(1, 5, 0.0)
    assert account.charge("alice", 3, 5, 0.0) is None
    account.refund(2, 0.0)
    assert account.charge("alice", 4, 5, 0.0) is None
    assert account.standing("alice", 0.0) is None, "no rate to tell of"


def test_other_limits_keep_what_was_used_and_what_is_held():
    account = tenants(requests_per_minute=10, concurrent=5)
    for number in range(3):
        account.charge("alice", number, 5, 0.0)
    account.govern({"alice": Limits(requests_per_minute=20, concurrent=3)})
    assert account.charge("alice", 3, 5, 0.0).which is Limit.CONCURRENT
    account.govern({"alice": Limits(requests_per_minute=20)})
    assert account.standing("alice", 0.0).requests.remaining == 14, "30 % of it was used"
    account.govern({})
    for number in range(3):
        account.settle(number, 5, 0.0)
    assert not account.limited


def test_the_next_owner_knows_what_was_used_and_what_is_held():
    account = tenants(requests_per_minute=10, tokens_per_minute=100, concurrent=2)
    account.charge("alice", 1, 30, 100.0)
    owed = account.owed(100.0)
    assert owed == (Owed("alice", pytest.approx(6.0), pytest.approx(18.0)),)
    successor = tenants(requests_per_minute=10, tokens_per_minute=100, concurrent=2)
    successor.restore([*owed, Owed("of nobody", 1.0, 1.0)], 7.0)
    successor.restore(owed, 7.0)
    successor.declare("alice", 1, 30, 4)
    successor.declare("alice", 1, 30, 4)
    standing = successor.standing("alice", 7.0)
    assert (standing.requests.remaining, standing.tokens.remaining) == (9, 70)
    successor.settle(1, None, 7.0)
    assert successor.standing("alice", 7.0).tokens.remaining == 66
    assert tenants(requests_per_minute=10).owed(0.0) == ()


def test_one_of_several_that_cannot_ask_each_other_grants_its_share():
    account = tenants(requests_per_minute=10, tokens_per_minute=100, concurrent=1)
    account.charge("alice", 1, 30, 0.0)
    account.restrict(0.5)
    standing = account.standing("alice", 0.0)
    assert (standing.requests.limit, standing.requests.remaining) == (5, 4), "a tenth was used"
    assert account.charge("alice", 2, 1, 0.0).which is Limit.CONCURRENT
    account.settle(1, 0, 0.0)
    assert account.charge("alice", 2, 1, 0.0) is None, "at least one at once"
    account.settle(2, 0, 0.0)
    account.govern({"alice": Limits(tokens_per_minute=200)})
    assert account.standing("alice", 0.0).tokens.limit == 100, "other limits are shared, too"
    account.restrict(1.0)
    assert account.standing("alice", 0.0).tokens.limit == 200


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "settle", "refund"]), st.integers(0, 9), st.integers(1, 50), st.floats(0, 5)),
    max_size=80,
)


@given(STEPS)
def test_nothing_stays_held_and_every_request_is_charged_once(steps):
    account, held, now = tenants(requests_per_minute=600, concurrent=4), set(), 0.0
    for what, request, tokens, gap in steps:
        now += gap
        if what == "take" and request not in held:
            if account.charge("alice", request, tokens, now) is None:
                held.add(request)
        elif what == "settle":
            account.settle(request, tokens, now)
            held.discard(request)
        elif what == "refund":
            account.refund(request, now)
            held.discard(request)
        assert len(held) <= 4
    for request in held:
        account.settle(request, 0, now)
    for request in range(100, 104):
        assert account.charge("alice", request, 1, now + 60) is None
